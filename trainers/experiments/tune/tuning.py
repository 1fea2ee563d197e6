"""The search that `--tune` asks for: its values and its runs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.fields import check_setting, field_types
from strategies.common.text import as_argument, shown
from trainers.config.comparison import DEFAULT_TUNE_RUNS, HELD_FIXED
from trainers.config.config import Config
from trainers.config.groups import check_group, field_of, option
from trainers.config.program import is_left_to_program
from trainers.config.run import DEFAULT_TRAIN_STEPS, LARGEST_SEED
from trainers.config.used_settings import unused
from trainers.experiments.arms import Arm

# Maximum number of seeds of a comparison, later ones included.
_MOST_SEEDS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Rung:
    """Runs of equal length in the search of one arm, with the steps of each run."""

    num_values: int
    steps: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The search that every arm gets.

    Attributes:
      setting: Name of the setting.
      values: Values to try, in ascending order; the first and the last are the bounds.
      asked_runs: Number of values that were asked for; there are fewer whole numbers
        between narrow bounds.
      train_steps: Length of a run of the comparison, in updates.
      seed: Seed of the runs of the search.
    """

    setting: str
    values: Sequence[float]
    asked_runs: int
    train_steps: int
    seed: int

    @property
    def rungs(self) -> list[Rung]:
        """Lengths of the runs: each rung has half of the values, and twice the steps.

        The last has two values, and half of the steps of the comparison.
        """
        # This number of halvings leaves one value.
        num_values, found = len(self.values), []
        for halvings in range((num_values - 1).bit_length(), 0, -1):
            found.append(Rung(num_values, self.train_steps >> halvings))
            num_values = (num_values + 1) // 2
        return found

    @property
    def search_steps(self) -> int:
        """Steps of the search of one arm, in updates."""
        return sum(rung.num_values * rung.steps for rung in self.rungs)

    @property
    def grid_steps(self) -> int:
        """Steps of one arm's whole runs of all values, in updates."""
        return len(self.values) * self.train_steps

    @property
    def is_logarithmic(self) -> bool:
        """True if values are evenly spaced by their logarithms."""
        return self.values[0] > 0

    def distance(self, value: float, given: Any) -> float:
        """Returns the distance of a value from the value before the search.

        It is zero if there was no value before, or if that one has no logarithm.
        """
        if given is None or (self.is_logarithmic and given <= 0):
            return 0.0
        return abs(math.log(value / given) if self.is_logarithmic else value - given)

    def allows(self, value: Any) -> bool:
        """Returns whether a value lies within the bounds."""
        return value is not None and self.values[0] <= value <= self.values[-1]

    def in_words(self) -> str:
        """Returns the search in the form of its flags."""
        low, high = self.values[0], self.values[-1]
        return f"{self.setting}:{low}..{high} --tune_runs={self.asked_runs}"

    def given(self, config: Config) -> Any:
        """Returns an arm's value before the search; None if its program has one."""
        if is_left_to_program(self.setting, config):
            return None
        return config.to_dict()[self.setting]

    def with_value(self, config: Config, value: Any) -> Config:
        """Returns an arm's configuration with a value of the setting, if any."""
        if value is None:
            return config
        return config.with_given(**{self.setting: value})


def tuning_of(config: Config, arms: Sequence[Arm]) -> Tuning | None:
    """Returns the search that `--tune` asks for; None without.

    Raises:
      UsageError: The search is not possible for all arms.
    """
    text = config.comparison.tune
    if text is None:
        return None
    count = config.comparison.tune_runs or DEFAULT_TUNE_RUNS
    try:
        name, low, high = _parsed(text)
        # No comparison has this seed, however many are added: one that could reach the
        # last seed does not begin at 0.
        reaches_last = config.run.seed + _MOST_SEEDS > LARGEST_SEED
        tuning = Tuning(
            setting=name,
            values=_spaced(low, high, count),
            asked_runs=count,
            train_steps=_train_steps(arms),
            seed=0 if reaches_last else LARGEST_SEED,
        )
        for arm in arms:
            _check_arm(tuning, arm, config.to_dict().get(name))
    except UsageError as error:
        raise UsageError(f"--tune={shown(text)}: {error}") from error
    return tuning


def _parsed(text: str) -> tuple[str, float, float]:
    """Returns the name of the setting and its bounds."""
    path, _, bounds = text.partition(":")
    low, dots, high = bounds.partition("..")
    if not dots:
        raise UsageError(
            "give it as name:low..high, such as --tune=learning_rate:1e-4..1e-1."
        )
    group, _, name = path.rpartition(".")
    if group:
        check_group(group, {name: bounds})
    config_class, field = field_of(name)
    hint, _ = field_types(config_class)[name]
    if hint not in (int, float):
        raise UsageError(f"{option(name)} is not one number: choose another setting.")
    if name in HELD_FIXED or name == "seed":
        raise UsageError(
            f"{option(name)} decides about {HELD_FIXED.get(name, 'the seeds')}, which "
            "all arms share: choose another setting, such as learning_rate."
        )
    try:
        ends = hint(low), hint(high)
    except ValueError as error:
        words = "whole numbers" if hint is int else "numbers"
        raise UsageError(f"the bounds of {option(name)} are {words}.") from error
    for end in ends:
        check_setting(config_class, field, end)
    if ends[0] >= ends[1]:
        raise UsageError(f"{low} is not below {high}: give the smaller number first.")
    return name, *ends


def _spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """Returns evenly spaced values, by their logarithms if both bounds are positive."""
    ends = low, high, count
    spaced = np.geomspace(*ends) if low > 0 else np.linspace(*ends)
    inner = spaced[1:-1].tolist()
    # Four digits tell values apart, and keep the names of folders short.
    is_whole = isinstance(low, int)
    numbers = [round(value) if is_whole else float(f"{value:.4g}") for value in inner]
    kept = [value for value in numbers if low < value < high]
    # Between near bounds, some of them are the same whole number.
    return tuple(dict.fromkeys([low, *kept, high]))


def _train_steps(arms: Sequence[Arm]) -> int:
    """Returns the length of the runs of the comparison.

    Raises:
      UsageError: It is not known before the data is, or arms differ in it.
    """
    lengths = {arm.config.length.train_steps for arm in arms}
    is_unknown = lengths == {None} and any(
        arm.config.length.epochs or arm.config.model.script for arm in arms
    )
    if is_unknown or len(lengths) > 1:
        raise UsageError(
            "a search needs runs of a known number of steps: give --train_steps, the "
            "same for all arms."
        )
    return lengths.pop() or DEFAULT_TRAIN_STEPS


def _check_arm(tuning: Tuning, arm: Arm, shared: Any) -> None:
    """Checks that an arm can be tuned.

    `shared` is the value of the setting outside of `--arm`.

    Raises:
      UsageError: The arm does not use the setting, gives it itself or refuses a value.
    """
    settings, name = arm.config.to_dict(), option(tuning.setting)
    for value in tuning.values:
        for other in unused({tuning.setting: value}, settings).get(tuning.setting, ()):
            raise UsageError(
                f"{name} is not used by the arm {arm.name}, which has "
                f"{option(other)}={as_argument(settings.get(other))}: choose a setting "
                "that all arms use."
            )
    given = settings.get(tuning.setting)
    if given != shared:
        raise UsageError(
            f"the arm {arm.name} gives {name}={as_argument(given)} itself: leave it "
            "out there; outside of --arm it is the value before the search."
        )
    if not tuning.rungs[0].steps:
        raise UsageError(
            f"--train_steps={tuning.train_steps} is too few to halve for "
            f"{len(tuning.values)} values: give {1 << len(tuning.rungs)} or more, or "
            "a smaller --tune_runs."
        )
    # What no bound of the setting says, such as a conflict with another setting.
    for value in tuning.values:
        try:
            tuning.with_value(arm.config, value)
        except UsageError as error:
            raise UsageError(f"the arm {arm.name}: {error}") from error
