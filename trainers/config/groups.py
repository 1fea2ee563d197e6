"""Groups of settings and the fields in them, by name.

Names of settings are unique over all groups. Flags and Python code use names alone,
files and `--set` names with groups.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.fields import option_of
from strategies.common.text import as_json, shown
from strategies.config import StrategyConfig
from strategies.devices.config import DeviceConfig
from trainers.config.comparison import ComparisonConfig
from trainers.config.data import DataConfig
from trainers.config.fault_tolerance import GuardConfig
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.config.other_names import OTHER_NAMES
from trainers.config.prediction import PredictionConfig
from trainers.config.run import LengthConfig, ReportConfig, RunConfig, ThreadsConfig
from trainers.config.tracking import TrackingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """All settings of a run by group: keys of files, in the order of `--help`."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    strategy: StrategyConfig = dataclasses.field(default_factory=StrategyConfig)
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    threads: ThreadsConfig = dataclasses.field(default_factory=ThreadsConfig)
    length: LengthConfig = dataclasses.field(default_factory=LengthConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    comparison: ComparisonConfig = dataclasses.field(default_factory=ComparisonConfig)
    prediction: PredictionConfig = dataclasses.field(default_factory=PredictionConfig)


# Class of each group, by its name.
GROUPS: Mapping[str, Any] = {
    field.name: field.default_factory for field in dataclasses.fields(Groups)
}


@functools.cache
def all_fields() -> Mapping[str, tuple[Any, dataclasses.Field]]:
    """Returns every setting by name with its group class, in the order of `--help`."""
    return {
        field.name: (config_class, field)
        for config_class in GROUPS.values()
        for field in dataclasses.fields(config_class)
    }


def defaults_of(*groups: Any) -> dict[str, Any]:
    """Returns the settings of some group classes by name, at their default values."""
    return {f.name: f.default for group in groups for f in dataclasses.fields(group)}


def option(name: str) -> str:
    """Returns the option of a setting: `--seed`, or `--set=model.ballast`."""
    return option_of(*all_fields()[name])


def by_group(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns settings by group and name, from settings by name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        found.setdefault(all_fields()[name][0].group, {})[name] = value
    return found


def field_of(name: str) -> tuple[Any, dataclasses.Field]:
    """Returns the group class and the field of a setting, from its name alone.

    Raises:
      UsageError: No setting has this name.
    """
    if name not in all_fields():
        raise UsageError(
            f"'{shown(name)}' is not a setting: {_did_you_mean(name, all_fields())}"
            "--helpfull lists the accepted names."
        )
    return all_fields()[name]


def check_group(group: str, settings: Any) -> None:
    """Checks one entry of a nested configuration.

    Args:
      group: Name of the group.
      settings: JSON value of the group: an object of settings by name.

    Raises:
      UsageError: There is no such group, a name is not in it, or it is no object.
    """
    if not isinstance(settings, dict):
        # Such as the flat {"learning_rate": 0.1}; some groups have a setting of the
        # same name.
        if group in all_fields():
            raise _misplaced(group, settings)
        if group in GROUPS:
            raise UsageError(
                f"'{group}' is {shown(settings)}, not an object of settings by name: "
                f'give "{group}": {{...}}.'
            )
    if group not in GROUPS:
        raise UsageError(
            f"'{shown(group)}' is not a group of settings: "
            f"{_did_you_mean(group, GROUPS)}choose one of {', '.join(GROUPS)}."
        )
    for name, value in settings.items():
        if name in defaults_of(GROUPS[group]):
            continue
        if name in all_fields():
            raise _misplaced(name, value)
        raise UsageError(
            f"'{shown(name)}' is not a setting of the group '{group}': "
            f"{_did_you_mean(name, all_fields())}--helpfull lists the accepted names."
        )


def _misplaced(name: str, value: Any) -> UsageError:
    group = all_fields()[name][0].group
    return UsageError(
        f"'{name}' is a setting of the group '{group}': give "
        f'{{"{group}": {{"{name}": {shown(as_json(value))}}}}}, or {option(name)}=.'
    )


# The longest setting has 28 characters. Comparing longer names takes seconds.
_LONGEST_NAME = 40
# More would say nothing.
_MOST_SUGGESTIONS = 4


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Returns known names that a misspelt or shortened one, such as `lr`, may mean."""
    if len(name) > _LONGEST_NAME:
        return []
    meant = OTHER_NAMES.get(name.replace("-", "_"), ())
    if known_of_those := [other for other in meant if other in known]:
        return known_of_those
    words = set(re.split("[-_]", name))
    found = [
        other
        for other in known
        if words <= {*other.split("_")}
        or (len(name) > 1 and name == "".join(w[0] for w in other.split("_")))
    ]
    fewest = min((other.count("_") for other in found), default=0)
    found = [other for other in found if other.count("_") == fewest]
    if len(found) > _MOST_SUGGESTIONS:
        return []
    return found or difflib.get_close_matches(name, known, n=1)


def _did_you_mean(name: str, known: Collection[str]) -> str:
    names = " or ".join(repr(other) for other in nearest(name, known))
    return f"did you mean {names}? " if names else ""
