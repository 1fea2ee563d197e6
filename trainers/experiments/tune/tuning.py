"""The search that `--tune` asks for: its values and its runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.fields import check_setting, field_types
from strategies.common.text import as_argument, shown
from trainers.config.comparison import DEFAULT_TUNE_RUNS, HELD_FIXED
from trainers.config.config import Config
from trainers.config.groups import check_group, field_of, option
from trainers.config.run import DEFAULT_TRAIN_STEPS, LARGEST_SEED
from trainers.config.used_settings import unused
from trainers.experiments.arms import Arm

# Most seeds of a comparison, with those that are added later.
_MOST_SEEDS = 1000
# Enough to tell values apart, and short enough for names of folders.
_SIGNIFICANT_DIGITS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Rung:
    """Runs of equal length in the search of one arm.

    Attributes:
      num_values: Number of values that are tried.
      steps: Length of each run, in updates.
    """

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

        It is zero if that is no number.
        """
        if given is None or (self.is_logarithmic and given <= 0):
            return 0.0
        if self.is_logarithmic:
            return abs(math.log(value / given))
        return abs(value - given)

    def in_words(self) -> str:
        """Returns the search in the form of its flags."""
        low, high = self.values[0], self.values[-1]
        return f"{self.setting}:{low}..{high} --tune_runs={self.asked_runs}"

    def with_value(self, config: Config, value: Any) -> Config:
        """Returns an arm's configuration with a value of the setting."""
        changed = config.replace(**{self.setting: value})
        # A program decides what no flag has given.
        return dataclasses.replace(changed, given=config.given | {self.setting})


def tuning_of(config: Config, arms: Sequence[Arm]) -> Tuning | None:
    """Returns the search that `--tune` asks for; None without.

    Args:
      config: Configuration of the comparison.
      arms: Arms before the search.

    Raises:
      UsageError: The search is not possible for all arms.
    """
    text = config.comparison.tune
    if text is None:
        return None
    count = config.comparison.tune_runs or DEFAULT_TUNE_RUNS
    try:
        name, low, high = _parsed(text)
        tuning = Tuning(
            setting=name,
            values=_spaced(low, high, count),
            asked_runs=count,
            train_steps=_train_steps(arms),
            seed=_seed_of_search(config.run.seed),
        )
        for arm in arms:
            _check_arm(
                tuning, arm, getattr(getattr(config, field_of(name)[0].group), name)
            )
        return tuning
    except UsageError as error:
        raise UsageError(f"--tune={shown(text)}: {error}") from error


def _parsed(text: str) -> tuple[str, float, float]:
    """Returns the name of the setting and its bounds."""
    path, colon, bounds = text.partition(":")
    ends = bounds.split("..")
    if not colon or len(ends) != 2:
        raise UsageError(
            "give it as name:low..high, such as --tune=learning_rate:1e-4..1e-1."
        )
    group, _, name = path.rpartition(".")
    if group:
        check_group(group, {name: bounds})
    config_class, field = field_of(name)
    hint, _ = field_types(config_class)[name]
    if hint not in (int, float):
        raise UsageError(
            f"{option(name)} is not one number: choose a setting that is, such as "
            "learning_rate."
        )
    if name in HELD_FIXED or name == "seed":
        what = HELD_FIXED.get(name, "the seeds")
        raise UsageError(
            f"{option(name)} decides about {what}, which all arms share: choose "
            "another setting, such as learning_rate."
        )
    try:
        low, high = map(hint, ends)
    except ValueError as error:
        words = "whole numbers" if hint is int else "numbers"
        raise UsageError(f"the bounds of {option(name)} are {words}.") from error
    for end in (low, high):
        check_setting(config_class, field, end)
    if low >= high:
        raise UsageError(
            f"the first bound, {low}, is not below the second, {high}: give the "
            "smaller number first."
        )
    return name, low, high


def _spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """Returns evenly spaced values, by their logarithms if both bounds are positive."""
    positions = [index / (count - 1) for index in range(1, count - 1)]
    inner = [
        low * (high / low) ** p if low > 0 else low + (high - low) * p
        for p in positions
    ]
    if isinstance(low, int):
        # Between near bounds, some of them are the same whole number.
        return tuple(dict.fromkeys([low, *map(round, inner), high]))
    rounded = [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in inner]
    kept = [value for value in rounded if low < value < high]
    return tuple(dict.fromkeys([low, *kept, high]))


def _train_steps(arms: Sequence[Arm]) -> int:
    """Returns the length of the runs of the comparison.

    Raises:
      UsageError: It is not known before the data is, or arms differ in it.
    """
    lengths = {arm.config.length.train_steps for arm in arms}
    by_epochs = any(arm.config.length.epochs for arm in arms)
    by_program = None in lengths and any(arm.config.model.script for arm in arms)
    if by_epochs or by_program or len(lengths) > 1:
        raise UsageError(
            "a search needs runs of a known number of steps: give --train_steps, the "
            "same for all arms."
        )
    return lengths.pop() or DEFAULT_TRAIN_STEPS


def _seed_of_search(first: int) -> int:
    """Returns a seed that no run of a comparison can have, however many are added."""
    # The last seed; a comparison that could reach it does not begin at 0.
    return LARGEST_SEED if first + _MOST_SEEDS <= LARGEST_SEED else 0


def _check_arm(tuning: Tuning, arm: Arm, shared: Any) -> None:
    """Checks that an arm can be tuned.

    Args:
      tuning: Search.
      arm: Arm before the search.
      shared: Value of the setting outside of `--arm`.

    Raises:
      UsageError: The arm does not use the setting, gives it itself or refuses a value.
    """
    settings, name = arm.config.to_dict(), option(tuning.setting)
    for value in tuning.values:
        deciding = unused({tuning.setting: value}, settings).get(tuning.setting)
        if deciding:
            because = as_argument(settings.get(deciding[0]))
            raise UsageError(
                f"{name} is not used by the arm {arm.name}, which has "
                f"{option(deciding[0])}={because}: choose a setting that all arms use."
            )
    given = settings[tuning.setting]
    if given != shared:
        raise UsageError(
            f"the arm {arm.name} gives {name}={as_argument(given)} itself: leave it "
            "out there; outside of --arm it is the value before the search."
        )
    if not tuning.rungs[0].steps:
        raise UsageError(
            f"--train_steps={tuning.train_steps} is too few to halve for "
            f"{len(tuning.values)} values: give --train_steps="
            f"{1 << len(tuning.rungs)} or more, or a smaller --tune_runs."
        )
    for value in tuning.values:
        try:
            tuning.with_value(arm.config, value)
        except UsageError as error:
            raise UsageError(f"the arm {arm.name}: {error}") from error
