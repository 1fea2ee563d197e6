"""Controlled settings, which all arms of a comparison must share."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from trainers.config.comparison import FIRST_EXAMPLES, HELD_FIXED, INITIAL_WEIGHTS
from trainers.config.config import Config
from trainers.config.groups import defaults_of, option
from trainers.config.program import THE_PROGRAMS, is_left_to_program
from trainers.config.run import DEFAULT_TRAIN_STEPS
from trainers.config.tracking import TrackingConfig
from trainers.config.used_settings import has_effect
from trainers.experiments.arms import Arm
from trainers.experiments.run_record import Run

# Settings that do not affect the training, or differ between the runs of an arm.
_NOT_COMPARED = {
    *("mode", "run_dir", "resume", "seed", "verbose"),
    *defaults_of(TrackingConfig),
}


def differing_settings(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Returns every setting in which arms differ, with its value in each arm.

    A controlled setting counts only in arms on which it has an effect: one process has
    no network.
    """
    settings = {arm.name: _settings(arm.config, arms) for arm in arms}
    names = [name for name in settings[arms[0].name] if name not in _NOT_COMPARED]
    values = {
        name: {
            arm: of_arm[name]
            for arm, of_arm in settings.items()
            if name not in HELD_FIXED or has_effect(name, of_arm)
        }
        for name in names
    }
    return {name: by_arm for name, by_arm in values.items() if _two_that_differ(by_arm)}


def _settings(config: Config, arms: Sequence[Arm]) -> dict[str, Any]:
    """Returns the settings of an arm, with words for what only its program decides.

    That is said of settings that another arm is given.
    """
    given = frozenset().union(*(arm.config.given for arm in arms))
    return {
        name: THE_PROGRAMS
        if name in given and is_left_to_program(name, config)
        else value
        for name, value in _with_length(config).to_dict().items()
    }


def _with_length(config: Config) -> Config:
    """Returns a configuration with the default number of steps, if none is given."""
    length = config.length
    # A program decides its own.
    if config.model.script or length.train_steps or length.epochs:
        return config
    return config.replace(train_steps=DEFAULT_TRAIN_STEPS)


def check_configurations(arms: Sequence[Arm], allowed: Collection[str]) -> None:
    """Raises UsageError if arms differ in a controlled setting that is not allowed."""
    differing = differing_settings(arms)
    for name, by_arm in differing.items():
        if name in HELD_FIXED and name not in allowed:
            values = " and ".join(
                f"{option(name)}={as_argument(value)} ({arm})"
                for arm, value in _two_that_differ(by_arm).items()
            )
            raise UsageError(
                f"arms differ in {HELD_FIXED[name]}: {values}; make them equal, or add "
                f"{name} to --set=comparison.allow_different."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Beginning:
    """A part of the state in which a run begins, which its result has a digest of.

    Attributes:
      name: Name in `HELD_FIXED`.
      settings: Settings that change it by intention.
      remedy: Change to make if arms differ.
    """

    name: str
    settings: frozenset[str]
    remedy: str

    def digest(self, run: Run) -> str | None:
        return run.result.get(f"{self.name}_sha256")


_BEGINNINGS = (
    # First, because weights may depend on the examples, such as of Normalization.
    _Beginning(
        name=FIRST_EXAMPLES,
        settings=frozenset({"dtype"}),
        remedy="give the generators of the program's data a seed",
    ),
    _Beginning(
        name=INITIAL_WEIGHTS,
        # Each changes the initial weights, or their division into variables, or the
        # shapes of the input or output of the model.
        settings=frozenset(
            {"model", "hidden_units", "dtype", "perturb_initial_weights", "ballast"}
            | {"embedding_dimension", "embedding_shards"}
            | {"dataset", "data_path", "input_shape", "num_classes", "record_schema"}
            | {"num_columns", "num_categories"}
        ),
        remedy="compare runs of the same code, whose initial weights depend on a seed "
        "alone",
    ),
)


def check_beginnings(
    runs: Sequence[Run], arms: Sequence[Arm], allowed: Collection[str]
) -> None:
    """Checks that all runs of one seed began with the same examples and weights.

    Arms that differ in a setting of the model or its input are not checked: their
    weights have to differ too.

    Raises:
      UsageError: Examples or weights differ, and may not.
    """
    differing = differing_settings(arms).keys()
    for beginning in _BEGINNINGS:
        if beginning.name in allowed or beginning.settings & differing:
            continue
        pair = _runs_that_differ(runs, beginning)
        if pair is not None:
            one, other = pair
            raise UsageError(
                f"arms differ in {HELD_FIXED[beginning.name]}: with seed {one.seed} "
                f"{one.arm} and {other.arm} began with different ones; "
                f"{beginning.remedy}, or add {beginning.name} to "
                "--set=comparison.allow_different."
            )


def remarks_on_beginnings(
    runs: Sequence[Run], differing: Collection[str], allowed: Collection[str]
) -> list[str]:
    """Returns remarks on beginnings that differ and may, one sentence each.

    Settings in which arms differ have remarks elsewhere.
    """
    return [
        f"Arms differ in {HELD_FIXED[beginning.name]}, as "
        "--set=comparison.allow_different permits."
        for beginning in _BEGINNINGS
        if beginning.name in allowed
        and beginning.name not in differing
        and _runs_that_differ(runs, beginning)
    ]


def _runs_that_differ(
    runs: Sequence[Run], beginning: _Beginning
) -> tuple[Run, Run] | None:
    first: dict[int, Run] = {}
    for run in runs:
        digest = beginning.digest(run)
        if digest is None:
            continue
        # The other runs of a seed must agree with its first one.
        other = first.setdefault(run.seed, run)
        if digest != beginning.digest(other):
            return other, run
    return None


def _two_that_differ(by_arm: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the first arm and of another; empty if all are equal."""
    pairs = list(by_arm.items())
    # By `!=`: a file may have 100 where a flag has 100.0.
    return next((dict([pairs[0], p]) for p in pairs if p[1] != pairs[0][1]), {})
