"""Settings that have an effect, and settings that have none.

`--num_ps=2` means nothing under --strategy=mirrored. A run that ignored it would look
as if it had done what was asked for, so the setting is refused. Each field declares
which settings it needs (`used_by` of `strategies.common.fields.setting`). A setting
counts as given if it differs from its default, so that a run's config.json, which has
all settings, is accepted back.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.text import as_argument, shown
from trainers.config.config import Config, without_lists
from trainers.config.groups import all_fields, option

# Only these decide what --mode=evaluate does; the run's config.json has all others.
_DECIDE_AN_EVALUATION = ("mode", "strategy")


def check_used(config: Config) -> None:
    """Checks that each setting that is given has an effect.

    Where several strategies run with the same settings, a setting needs an effect on
    one of them. `check_used_by_one` checks the settings of a single arm.

    Raises:
      UsageError: A setting has no effect; the message says where it would have one.
    """
    settings = config.to_dict()
    strategies = config.comparison.strategies or (config.strategy.strategy,)
    runs = [{**settings, "strategy": strategy} for strategy in strategies]
    if config.comparison.arm:
        settings = {n: v for n, v in settings.items() if "mode" in deciding_on(n)}
    check_used_by_one(settings, runs)


def check_used_by_one(
    settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> None:
    """Checks that each setting that is given has an effect on one of several runs.

    Raises:
      UsageError: A setting has no effect; the message says where it would have one.
    """
    names = set.intersection(*({*unused(settings, run)} for run in runs))
    for name in settings:
        if name in names:
            raise _refusal(name, settings[name], runs)


def unused(
    settings: Mapping[str, Any], run: Mapping[str, Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """Finds settings that are given and have no effect.

    Args:
      settings: Values by name; absent settings have their defaults.
      run: Settings that decide whether one has an effect; None for `settings`.

    Returns:
      For the name of each, the names of the settings that would have to differ.
    """
    run = settings if run is None else run
    found = {}
    for name, value in settings.items():
        field = all_fields()[name].field
        is_given = without_lists(value) != field.default
        if is_given and not has_effect(name, run):
            found[name] = deciding_on(name)
    return found


def without_unused(config: Config) -> Config:
    """Returns a configuration in which settings without an effect have defaults."""
    # Another setting may have needed a dropped one.
    while dropped := unused(config.to_dict()):
        config = config.replace(**{n: all_fields()[n].field.default for n in dropped})
    return config


def deciding_on(name: str) -> tuple[str, ...]:
    """Returns the names of the settings that decide whether one has an effect."""
    return tuple(all_fields()[name].field.metadata["used_by"] or ())


def values_with_effect(name: str, other: str) -> tuple[str, ...]:
    """Returns the values, or patterns, of another setting with which one has an effect.

    There are none if the other setting does not decide on it.
    """
    values = (all_fields()[name].field.metadata["used_by"] or {}).get(other, ())
    try:
        return tuple(values() if callable(values) else values)
    except ValueError as error:  # A file in models/ that cannot be read.
        raise UsageError(str(error)) from error


def has_effect(name: str, run: Mapping[str, Any]) -> bool:
    """Returns whether a setting has an effect on a run.

    Settings that the run does not have count with their defaults.
    """
    deciding = deciding_on(name)
    if run.get("mode") == "evaluate":
        deciding = tuple(n for n in deciding if n in _DECIDE_AN_EVALUATION)
    return not deciding or any(
        fnmatchcase(text, pattern)
        for other in deciding
        for text in _words_of(_value(other, run))
        for pattern in values_with_effect(name, other)
    )


def _value(name: str, run: Mapping[str, Any]) -> Any:
    return run.get(name, all_fields()[name].field.default)


def _words_of(value: Any) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [str(i).lower() if isinstance(i, bool) else str(i) for i in items]


def _refusal(name: str, value: Any, runs: Sequence[Mapping[str, Any]]) -> UsageError:
    other = deciding_on(name)[0]
    present = list(dict.fromkeys(as_argument(_value(other, run)) for run in runs))
    choices = []
    for deciding in deciding_on(name):
        words = [p for p in values_with_effect(name, deciding) if "*" not in p]
        # Settings without a flag are for this project's own runs.
        if all_fields()[deciding].field.metadata["has_flag"]:
            choices.append(f"{option(deciding)}={' or '.join(words)}")
    # Such as --num_replicas for --replicas.
    choices += [
        option(n)
        for n in all_fields()
        if n.endswith(f"_{name}") and any(has_effect(n, run) for run in runs)
    ]
    # The flag of a range gives two settings.
    ranges = (
        n for n, (_, f) in all_fields().items() if f.metadata["range_from"] == name
    )
    return UsageError(
        f"{option(next(ranges, name))}={shown(as_argument(value))} is not used by "
        f"{option(other)}={shown(', '.join(present))}: leave it out, or choose "
        f"{', or '.join(choices)}."
    )
