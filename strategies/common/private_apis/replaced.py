"""Attributes of others' modules and classes, replaced for a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(
    place: Any, names: Iterable[str], replacement: Callable[[str, Any], Any]
) -> Iterator[None]:
    """Replaces attributes of a module or class in the block.

    Args:
      place: Module or class.
      names: Names of the attributes.
      replacement: Function from a name and its value to the value in the block.
    """
    originals = {name: getattr(place, name) for name in names}
    for name, original in originals.items():
        setattr(place, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(place, name, original)
