"""JSON values for metrics and a program's callbacks in a checkpoint."""

import base64
import io
import math
from typing import Any

import numpy as np

# Keys of values that JSON cannot express.
_FLOAT, _ARRAY, _ENTRIES = "/float", "/array", "/entries"


def as_plain(value: Any) -> Any:
    """Returns a variable or tensor as an array, and an array of one as a number.

    A variable changes after a callback has logged it.
    """
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    is_of_numpy = isinstance(value, (np.generic, np.ndarray))
    return value.item() if is_of_numpy and value.ndim == 0 else value


def encoded(value: Any) -> list[Any]:
    """Returns the JSON value in a list; an empty list if the value has none.

    Args:
      value: Number, text or array, or a list or dictionary of them.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return [value]
    if isinstance(value, float):
        return [value if math.isfinite(value) else {_FLOAT: repr(value)}]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        buffer = io.BytesIO()
        np.save(buffer, value)
        return [{_ARRAY: base64.b64encode(buffer.getvalue()).decode()}]
    if isinstance(value, (list, tuple)):
        parts = [encoded(part) for part in value]
        return [[part for (part,) in parts]] if all(parts) else []
    if isinstance(value, dict):
        # Keys may be numbers, such as of epochs, which JSON would turn into texts.
        keys, values = encoded(list(value)), encoded(list(value.values()))
        if keys and values:
            return [{_ENTRIES: [keys[0], values[0]]}]
    return []


def is_not_finite(value: Any) -> bool:
    """Returns whether a JSON value is an encoded number that is not finite."""
    words = ("inf", "-inf", "nan")
    return value in [{_FLOAT: word} for word in words]


def decoded(value: Any) -> Any:
    """Returns what `encoded` has encoded; a tuple has become a list."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT}:
        return float(value[_FLOAT])
    if value.keys() == {_ARRAY}:
        return np.load(io.BytesIO(base64.b64decode(value[_ARRAY])), allow_pickle=False)
    keys, values = value[_ENTRIES]
    # A tuple in the place of a key must be one again.
    keys = [tuple(k) if isinstance(k, list) else k for k in decoded(keys)]
    return dict(zip(keys, decoded(values), strict=True))
