"""Attributes of others' modules and classes, replaced for a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(
    place: Any, names: Iterable[str], replacement: Callable[[str, Any], Any]
) -> Iterator[None]:
    """Replaces attributes of a module or class in the block."""
    originals = {name: getattr(place, name) for name in names}
    for name, original in originals.items():
        setattr(place, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(place, name, original)
