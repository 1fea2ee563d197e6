"""Marks of tests that `make test` leaves to `make test-exhaustive`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def further(*values: Any) -> Any:
    """Returns values of a test's parameters that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def chosen(values: Iterable[Any], representatives: Collection[Any]) -> list[Any]:
    """Returns all values, and marks all except the representatives as exhaustive."""
    values = list(values)
    unknown = [value for value in representatives if value not in values]
    if unknown:
        raise ValueError(f"{unknown} are not among {values}")
    return [v if v in representatives else further(*_unpacked(v)) for v in values]


def _unpacked(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
