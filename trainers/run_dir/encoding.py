"""JSON values for metrics and a program's callbacks in a checkpoint."""

import base64
import io
import math
import sys
from collections import deque
from typing import Any

import numpy as np

# Keys of values that JSON cannot express, and of the type of an array.
_FLOAT, _ARRAY, _ENTRIES, _TYPE = "/float", "/array", "/entries", "/type"
_TENSOR = "/tensor"


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
      value: Number, text, array or tensor, or a list, set or dictionary of them.
    """
    if _is_tensor(value):
        return [{_TENSOR: part} for part in encoded(np.asarray(value.numpy()))]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return [value]
    if isinstance(value, float):
        return [value if math.isfinite(value) else {_FLOAT: repr(value)}]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        # NumPy writes types of other libraries, such as bfloat16, without their names.
        is_of_numpy = value.dtype.isbuiltin != 2
        buffer = io.BytesIO()
        np.save(buffer, value if is_of_numpy else value.view(f"u{value.itemsize}"))
        content = {_ARRAY: base64.b64encode(buffer.getvalue()).decode()}
        return [content if is_of_numpy else {**content, _TYPE: value.dtype.name}]
    if isinstance(value, set):
        value = sorted(value, key=repr)  # Processes have different hashes of texts.
    if isinstance(value, (list, tuple, deque)):
        parts = [encoded(part) for part in value]
        return [[part for (part,) in parts]] if all(parts) else []
    if isinstance(value, dict):
        # Keys may be numbers, such as of epochs, which JSON would turn into texts.
        keys, values = encoded(list(value)), encoded(list(value.values()))
        if keys and values:
            return [{_ENTRIES: [keys[0], values[0]]}]
    return []


def _is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor that has a value, and no variable."""
    # Processes that only compare runs import this module, and no TensorFlow.
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    return isinstance(value, tensorflow.Tensor) and hasattr(value, "numpy")


def is_not_finite(value: Any) -> bool:
    """Returns whether a JSON value is an encoded number that is not finite."""
    words = ("inf", "-inf", "nan")
    return value in [{_FLOAT: word} for word in words]


def decoded(value: Any) -> Any:
    """Returns what `encoded` has encoded; a tuple or set has become a list."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT}:
        return float(value[_FLOAT])
    if value.keys() == {_TENSOR}:
        return sys.modules["tensorflow"].convert_to_tensor(decoded(value[_TENSOR]))
    if _ARRAY in value:
        buffer = io.BytesIO(base64.b64decode(value[_ARRAY]))
        array = np.load(buffer, allow_pickle=False)
        return array.view(value[_TYPE]) if _TYPE in value else array
    keys, values = value[_ENTRIES]
    return dict(zip(map(as_key, decoded(keys)), decoded(values), strict=True))


def as_key(value: Any) -> Any:
    """Returns a key of a dictionary, in which lists were tuples."""
    return tuple(map(as_key, value)) if isinstance(value, list) else value
