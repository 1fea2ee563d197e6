"""Configuration of a run: frozen groups of settings.

Each field is a flag or a `--set`, an entry of the help, a key of config.json and a
validation rule. The groups determine the order of the help and the nesting of files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from strategies.base import Traits
from trainers.config.checks import CHECKS
from trainers.config.groups import GROUPS, Groups, all_fields, by_group, field_of

# `to_dict` omits these groups' settings at their default values, because a training run
# does not read them.
_GROUPS_OF_OTHER_MODES = ("comparison", "prediction")
# Key of files beside the groups: the names of the settings that were given.
GIVEN = "given"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Groups):
    """All settings of a run."""

    # Names of the settings that a flag, a file or a call has given, perhaps the default
    # value. What a program chooses holds where none has.
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        """Checks constraints that involve more than one group.

        Raises:
          UsageError: Two settings contradict each other.
        """
        for check in CHECKS:
            check(self)

    @property
    def traits(self) -> Traits:
        """Traits of the strategy under this configuration and data set."""
        traits = self.strategy.traits
        # With file sharding each worker reads different files, so the global batches
        # differ from a single process's and the training cannot match one device.
        if self.data.sharding == "file" and traits.multi_process:
            return dataclasses.replace(traits, matches_one_device=False)
        return traits

    @property
    def data_name(self) -> str:
        """Name of the data for people: a program has its own."""
        return self.data.dataset if self.model.script is None else "of the program"

    @property
    def drops_last_batch(self) -> bool:
        """True if all global batches are full.

        Readers of file shards repeat their files, so they never yield a partial batch.
        """
        return self.length.drop_last_batch or self.data.sharding == "file"

    # `self` is positional-only, so that a file with a setting named `self` reaches
    # `field_of`, which rejects it as unknown.
    def replace(self, /, **values: Any) -> Config:
        """Returns a copy with some settings changed, by their names.

        Raises:
          UsageError: A name is unknown, or a value is not accepted.
        """
        return self._changed(values, self.given)

    def with_given(self, /, **values: Any) -> Config:
        """Returns a copy with settings that the user has given, perhaps the defaults.

        Raises:
          UsageError: A name is unknown, or a value is not accepted.
        """
        return self._changed(values, self.given | values.keys())

    def _changed(self, values: Mapping[str, Any], given: frozenset[str]) -> Config:
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            group = field_of(name).group_class.group
            changes.setdefault(group, {})[name] = without_lists(value)
        groups = {
            group: dataclasses.replace(getattr(self, group), **settings)
            for group, settings in changes.items()
        }
        # One call with all groups, so that `__post_init__` checks only the final
        # combination and not the intermediate ones.
        return dataclasses.replace(self, given=given, **groups)

    def to_dict(self) -> dict[str, Any]:
        """Returns all settings by flat name, in types that JSON has.

        Settings of comparisons and predictions are omitted at their default values.
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for group in GROUPS
            for name, value in dataclasses.asdict(getattr(self, group)).items()
            if group not in _GROUPS_OF_OTHER_MODES
            or value != all_fields()[name].field.default
        }

    def to_file(self) -> dict[str, Any]:
        """Returns the content of config.json: settings by group, and what was given."""
        return {**by_group(self.to_dict()), GIVEN: sorted(self.given)}


def without_lists(value: Any) -> Any:
    """Returns a JSON list as the tuple that settings hold; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value
