"""Configuration file: a JSON object of settings by group (`--config`)."""

from typing import Any

from strategies.common.errors import UsageError
from strategies.common.fields import check_setting
from strategies.common.files import read_small
from strategies.common.strict_json import parse_json
from strategies.common.text import shown
from trainers.config.config import GIVEN, Config, without_lists
from trainers.config.groups import all_fields, check_group, field_of

_REMEDY = "give a JSON file of settings by group, such as a run's config.json"


def config_from_file(
    path: str, *, name: str | None = None, remedy: str = _REMEDY
) -> Config:
    """Reads a complete configuration from a file; see `settings_from_file`.

    Raises:
      UsageError: The file cannot be read, or its settings are not accepted.
    """
    name = name or f"--config={path}"
    settings, given = settings_from_file(path, name=name, remedy=remedy)
    try:
        return Config(given=given or frozenset()).replace(**settings)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def settings_from_file(
    path: str, *, name: str | None = None, remedy: str = _REMEDY
) -> tuple[dict[str, Any], frozenset[str] | None]:
    """Reads settings from a file and checks each of them separately.

    Combinations of settings are not checked, because flags may change them later.

    Args:
      path: Path of the file.
      name: Name of the file in error messages. Default: --config=`path`.
      remedy: Advice in the error message for an unusable file.

    Returns:
      Values by name of the setting, without groups, and the names of the settings that
      were given for the run of the file; None if the file does not say so.

    Raises:
      UsageError: The file cannot be read or holds no JSON object, a name is unknown, or
        a value is never accepted.
    """
    name = name or f"--config={path}"
    try:
        content = parse_json(read_small(path))
    except OSError as error:
        words = error.strerror
        raise UsageError(f"{name} cannot be read ({words}): {remedy}.") from error
    except ValueError as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{name} is not JSON ({words}): {remedy}.") from error
    if not isinstance(content, dict):
        raise UsageError(
            f"{name} holds {shown(content)}, not a JSON object of settings by group: "
            f"{remedy}."
        )
    try:
        given = _given(content.pop(GIVEN, None))
        for group, settings in content.items():
            check_group(group, settings)
        values = {
            setting: _accepted(setting, value)
            for settings in content.values()
            for setting, value in settings.items()
        }
        return values, given
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def _given(names: Any) -> frozenset[str] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UsageError(
            f"'{GIVEN}' is {shown(names)}, not a list of names of settings: leave it "
            "out."
        )
    for name in names:
        field_of(name)
    return frozenset(names)


def _accepted(setting: str, value: Any) -> Any:
    value = without_lists(value)
    check_setting(*all_fields()[setting], value)
    return value
