"""Parser of JSON that refuses repeated keys."""

import json
from typing import Any

from strategies.common.text import shown


def parse_json(text: str) -> Any:
    """Parses JSON and refuses repeated keys.

    Python's own parser takes the last of two equal keys and ignores the other one.

    Raises:
      ValueError: The text is not JSON, an object has a key twice, or it is nested too
        deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"'{shown(name)}' is there twice")
        found[name] = value
    return found
