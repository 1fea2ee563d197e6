"""Settings of a run: mode, length, threads and reports."""

import dataclasses
from typing import ClassVar

from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, setting
from strategies.common.text import as_argument, shown

MODES = (
    "train", "evaluate", "verify", "compare", "predict", "explain", "doctor", "devices",
)  # fmt: skip

# These start each run as a separate process, in folders below their own.
MODES_THAT_START_RUNS = ("verify", "compare", "predict", "explain")

LARGEST_SEED = 2**31 - 1
# Updates of a run for which neither --train_steps nor --epochs is given.
DEFAULT_TRAIN_STEPS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Task of the process, and the place of its results."""

    group: ClassVar[str] = "run"

    mode: str = setting(
        "train",
        "Task of this command.",
        choices=MODES,
    )
    run_dir: str | None = setting(
        None,
        "Folder of the run, verification or comparison. Default: a new one under "
        "runs/, named after strategy, model, data set and time.",
        path="folder",
    )
    resume: str = setting(
        "never",
        "auto continues the run in --run_dir from its newest checkpoint, or "
        "starts it if there is none; never refuses a folder that holds a run.",
        choices=("never", "auto"),
        used_by={"mode": ("train", "doctor")},
    )
    seed: int = setting(
        0,
        "Decides initial weights, the order of examples and dropout.",
        minimum=0,
        maximum=LARGEST_SEED,
    )
    verbose: bool = setting(False, "Show tracebacks and TensorFlow's own log.")
    warm_start: bool = setting(
        True,
        "Import TensorFlow once, and fork the processes of a cluster, comparison, "
        "verification or prediction.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        # A URL would work for TensorFlow's own files, but locks and atomic renames need
        # a file system of the machine.
        if self.run_dir is not None and "://" in self.run_dir:
            raise UsageError(
                f"--run_dir={shown(self.run_dir)} is no folder of this machine, and a "
                "run needs its locks and atomic renames: give one, and "
                "--tensorboard_dir for event files elsewhere."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadsConfig:
    """Threads of each process."""

    group: ClassVar[str] = "threads"

    intra_op_threads: int = setting(
        0,
        "Threads that share one operation. 0: as many as cores the process may use.",
        minimum=0,
        maximum=1024,
        has_flag=False,
    )
    inter_op_threads: int = setting(
        0,
        "Threads that run operations side by side. 0: TensorFlow's choice.",
        minimum=0,
        maximum=1024,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """Training length."""

    group: ClassVar[str] = "length"

    train_steps: int | None = setting(
        None,
        f"Updates to apply. Default: {DEFAULT_TRAIN_STEPS}, unless --epochs is given.",
        minimum=1,
    )
    epochs: int | None = setting(
        None, "Passes over the training examples, instead of --train_steps.", minimum=1
    )
    global_batch_size: int = setting(
        64, "Examples of one update, over all replicas together.", minimum=1
    )
    drop_last_batch: bool = setting(
        False,
        "Leave out the last batch of every epoch if it would be smaller than the "
        "others. Each epoch leaves out other examples.",
        has_flag=False,
    )
    steps_per_loop: int | None = setting(
        None,
        "Steps of one call from Python. Default: as many as take about 50 ms. Does not "
        "change the training.",
        minimum=1,
        maximum=1_000_000,
    )
    step_delay_milliseconds: float = setting(
        0.0,
        "Make every step take this much longer, to see what a comparison makes of a "
        "slower arm.",
        minimum=0,
        maximum=10_000,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        # Both are None by default, which distinguishes a given flag from the default of
        # 1000 steps.
        if self.train_steps is not None and self.epochs is not None:
            raise UsageError(
                f"--train_steps={self.train_steps} and --epochs={self.epochs} both "
                "say how long to train: give one of them, or none for the other."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Summaries, evaluation and checkpoints."""

    group: ClassVar[str] = "report"

    summary_every_steps: int = setting(
        100, "Steps between lines of metrics.jsonl and TensorBoard scalars.", minimum=1
    )
    histogram_every_steps: int | None = setting(
        500,
        "Steps between histograms; none for no histograms at all.",
        minimum=1,
        has_flag=False,
    )
    record_steps: bool = setting(
        False,
        "Keep the loss, the summed gradient and all variables of every step in "
        "recording/, as --mode=verify does. In float32 it takes 8 bytes for each "
        "parameter and step, and every step a call of its own.",
        has_flag=False,
    )
    profile_steps: tuple[int, ...] | None = setting(
        None,
        "Two steps, such as 100,110: a trace of those after the first up to the "
        "second, for TensorBoard's profile plugin. In a cluster, of the chief.",
        minimum=1,
        has_flag=False,
    )
    step_phases: bool = setting(
        False,
        "Write where the time of each task's steps went into step_phases/, as "
        "--mode=explain does.",
        has_flag=False,
    )
    replica_statistics: bool = setting(
        False,
        "Report each replica's loss, the cosine between replicas' gradients and an "
        "estimate of the gradient noise scale. Reads all gradients once more a step.",
        has_flag=False,
    )
    eval_every_steps: int | None = setting(
        0,
        "Steps between evaluations. 0: once an epoch, and at least ten times a run; "
        "none: only at the end.",
        minimum=0,
    )
    final_evaluation: bool = setting(
        True,
        "Evaluate after the last step. Without it --eval_every_steps=none evaluates "
        "nothing, as --mode=verify and --mode=predict do, which read no evaluation.",
        has_flag=False,
    )
    eval_global_batch_size: int = setting(
        500,
        "Examples evaluated at a time, over all replicas.",
        minimum=1,
        has_flag=False,
    )
    checkpoint_every_steps: int | None = setting(
        500, "Steps between checkpoints; there is always one at the end.", minimum=1
    )
    keep_checkpoints: int = setting(
        3, "Newest checkpoints that are kept.", minimum=1, has_flag=False
    )
    export: tuple[str, ...] | None = setting(
        None,
        "Write the model into export/: `last` at the end, and `best` whenever an "
        "evaluation has a lower loss than all before. keras: a .keras file; "
        "weights: a .weights.h5 file; saved_model: a folder for serving.",
        choices=("keras", "weights", "saved_model"),
    )
    exported_model: str | None = setting(
        None,
        "A .keras file of --export that --mode=evaluate takes the weights from, in "
        "place of the newest checkpoint.",
        path="file",
        used_by={"mode": ("evaluate",)},
    )

    @property
    def evaluates(self) -> bool:
        """True if a run has an evaluation at all, if there are examples for one."""
        return self.eval_every_steps is not None or self.final_evaluation

    def __post_init__(self) -> None:
        check_settings(self)
        steps = self.profile_steps
        # The trace covers the steps after the first up to and including the second.
        if steps is not None and (len(steps) != 2 or steps[0] >= steps[1]):
            raise UsageError(
                f"--set=report.profile_steps={as_argument(steps)} is no range of "
                "steps: give two steps, the first and a later one, such as 100,110."
            )
