"""Settings of a comparison."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, setting
from strategies.common.text import shown

INITIAL_WEIGHTS = "initial_weights"
FIRST_EXAMPLES = "first_examples"

# Controlled properties of a comparison: setting name -> the property that the setting
# determines, which must be equal in all arms. The last two entries are also digests, of
# the initial weights and of a program's data, which are compared after each seed.
HELD_FIXED: Mapping[str, str] = {
    "model": "the initial weights",
    "hidden_units": "the initial weights",
    "embedding_dimension": "the initial weights",
    "perturb_initial_weights": "the initial weights",
    "dtype": "the dtype",
    "global_batch_size": "the global batch",
    "drop_last_batch": "the global batch",
    "train_steps": "the number of steps",
    "epochs": "the number of steps",
    "dataset": "the order of examples",
    "data_path": "the order of examples",
    "eval_fraction": "the order of examples",
    "record_schema": "the order of examples",
    "augmentation": "the order of examples",
    "sharding": "the order of examples",
    "shuffle_buffer_examples": "the order of examples",
    "num_examples": "the order of examples",
    "input_shape": "the order of examples",
    "num_classes": "the order of examples",
    "num_columns": "the order of examples",
    "num_categories": "the order of examples",
    "eval_data_path": "evaluation",
    "eval_every_steps": "evaluation",
    "eval_global_batch_size": "evaluation",
    "emulated_bandwidth_mbit": "the network",
    INITIAL_WEIGHTS: "the initial weights",
    FIRST_EXAMPLES: "the first examples",
}

# The t interval of two differences has one degree of freedom and reaches 13 standard
# errors to each side: only absurdly large effects would be detected.
FEWEST_SEEDS = 3

# Values that --tune tries in each arm unless --tune_runs says otherwise.
DEFAULT_TUNE_RUNS = 8

# Declares a setting of comparisons alone.
_of_comparisons = functools.partial(setting, used_by={"mode": ("compare",)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """Comparison."""

    group: ClassVar[str] = "comparison"

    strategies: tuple[str, ...] | None = setting(
        None,
        "Strategies to compare with each other (--mode=compare) or with one_device "
        "(verify), or to predict (predict). All other settings are shared.",
        choices=registry.names,
        used_by={"mode": ("compare", "verify", "predict")},
    )
    arm: tuple[str, ...] | None = _of_comparisons(
        None,
        "One more thing to compare, as 'name: flags', such as 'four: "
        "--strategy=mirrored --num_replicas=4'. Can be given several times.",
        repeatable=True,
    )
    runs: tuple[str, ...] | None = _of_comparisons(
        None,
        "Compare finished runs instead: their folders, or folders that hold them. "
        "name:folder gives the arm a name.",
        path="folder",
    )
    seeds: int = _of_comparisons(
        5,
        "Runs of each arm, with --seed, --seed + 1, ... Fewer than 3 are too few to "
        "conclude anything. 3-10: as many of these as --until=verdict takes.",
        minimum=1,
        maximum=1000,
        range_from="fewest_seeds",
    )
    fewest_seeds: int | None = _of_comparisons(
        None,
        "Number of seeds after which --until=verdict looks for the first time; none "
        f"for {FEWEST_SEEDS}.",
        minimum=FEWEST_SEEDS,
        maximum=1000,
        has_flag=False,
    )
    until: str | None = _of_comparisons(
        None,
        "seeds: run all --seeds. verdict: look after every seed, and stop when every "
        "arm has its verdicts on speed and accuracy. none: verdict if --seeds is a "
        "range, such as 3-10.",
        choices=("seeds", "verdict"),
    )
    drop_losers: bool = _of_comparisons(
        False,
        "With --until=verdict, stop running an arm once another is shown to be faster.",
    )
    tune: str | None = _of_comparisons(
        None,
        "Before the comparison, search the best value of a setting for each arm in "
        "shorter runs, as name:low..high, such as learning_rate:1e-4..1e-1.",
    )
    tune_runs: int | None = _of_comparisons(
        None,
        "Values that --tune tries in each arm. Default: "
        f"{DEFAULT_TUNE_RUNS}, in all 37.5 percent of the steps of whole runs.",
        minimum=2,
        maximum=256,
    )
    speed_margin_percent: float = _of_comparisons(
        10.0,
        "Speeds are called equivalent if they differ by less than this, in percent.",
        above=0,
        maximum=1000,
        has_flag=False,
    )
    accuracy_margin_points: float = _of_comparisons(
        0.5,
        "Accuracies are called equivalent if they differ by less than this, in "
        "percentage points.",
        above=0,
        below=100,
        has_flag=False,
    )
    target_accuracy: float | None = _of_comparisons(
        None,
        "Report how long training takes to reach this accuracy, from 0 to 1; needs "
        "--eval_every_steps.",
        above=0,
        maximum=1,
        has_flag=False,
    )
    allow_different: tuple[str, ...] | None = _of_comparisons(
        None,
        "Settings in which arms may differ although a comparison holds them fixed.",
        choices=tuple(HELD_FIXED),
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("strategies", "arm", "runs"):
            items = getattr(self, name) or ()
            twice = next((item for item in items if items.count(item) > 1), None)
            if twice is not None:
                raise UsageError(
                    f"--{name} has {twice!r} twice: leave one of them out."
                )
        if self.runs is not None and (self.strategies or self.arm):
            raise UsageError(
                "--runs compares what has run already, --strategies and --arm run "
                "something: give the one or the others."
            )
        self._check_stopping()
        self._check_tuning()

    @property
    def stops_at_verdict(self) -> bool:
        """True if the comparison looks after every seed."""
        return self.until == "verdict" or (
            self.until is None and self.fewest_seeds is not None
        )

    @property
    def looks(self) -> tuple[int, int]:
        """First and last number of seeds at which arms are compared."""
        first = self.seeds
        if self.stops_at_verdict:
            first = self.fewest_seeds or FEWEST_SEEDS
        return first, self.seeds

    def _check_stopping(self) -> None:
        first, last = self.looks
        if self.until == "seeds" and self.fewest_seeds is not None:
            raise UsageError(
                f"--seeds={self.fewest_seeds}-{last} is a range, and --until=seeds "
                "runs all seeds: leave --until out, or give one number of --seeds."
            )
        if self.fewest_seeds is not None and first > last:
            raise UsageError(
                f"--seeds={first}-{last} ends before it begins: give the smaller "
                f"number first, such as --seeds={FEWEST_SEEDS}-10."
            )
        if self.stops_at_verdict and last < FEWEST_SEEDS:
            raise UsageError(
                f"--until=verdict with --seeds={last} can have no verdict: give "
                f"{FEWEST_SEEDS} or more, such as --seeds={FEWEST_SEEDS}-10."
            )
        if self.stops_at_verdict and self.runs is not None:
            raise UsageError(
                "--until=verdict decides how many runs to start, and --runs starts "
                "none: leave one of them out."
            )
        if self.drop_losers and not self.stops_at_verdict:
            raise UsageError(
                "--drop_losers needs looks between the seeds: give --until=verdict, or "
                f"a range such as --seeds={FEWEST_SEEDS}-10."
            )

    def _check_tuning(self) -> None:
        if self.tune_runs is not None and self.tune is None:
            raise UsageError(
                f"--tune_runs={self.tune_runs} counts values of --tune: give it too, "
                "such as --tune=learning_rate:1e-4..1e-1, or leave both out."
            )
        if self.tune is not None and self.runs is not None:
            raise UsageError(
                f"--tune={shown(self.tune)} starts runs, and --runs compares what has "
                "run already: leave one of them out."
            )
