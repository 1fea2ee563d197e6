"""Reads the pickles of CIFAR-10 without letting them call anything.

A pickle is a program: it names functions and calls them. Those of CIFAR-10 name three
of NumPy, which make an array out of bytes. Here three stand-ins answer to these names,
which keep what they are given and do nothing else, and no other name is answered to.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.text import shown


def read_pickle(place: str, content: bytes) -> dict[bytes, Any]:
    """The dictionary in a pickle, with arrays of bytes as uint8 arrays.

    Args:
      place: of the pickle, to be named in errors.
      content: of the file.

    Raises:
      UsageError: it is damaged, or holds what the published files do not.
    """
    try:
        # The text of Python 2 is bytes.
        stored = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    # Damaged bytes can raise nearly anything (Python's documentation of pickle).
    except Exception as error:
        reason = shown(" ".join(str(error).split()) or type(error).__name__)
        raise UsageError(
            f"{place} is not a pickle as CIFAR-10 was published in ({reason}): nothing "
            "of it was run; give the published cifar-10-python.tar.gz."
        ) from error
    if not isinstance(stored, dict):
        raise UsageError(
            f"{place} holds no dictionary of images and labels: give the published "
            "cifar-10-python.tar.gz."
        )
    return {
        key: value.values if isinstance(value, _Array) else value
        for key, value in stored.items()
    }


class _Type:
    """Stands in for the type of an array's numbers."""

    __slots__ = ("name",)

    def __init__(self, name: Any):
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which single bytes do not have."""


class _Array:
    """Stands in for an array, until its state says what is in it."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Type) or kind.name != b"u1":
            raise pickle.UnpicklingError("it holds an array of other than bytes")
        values = np.frombuffer(content, np.uint8)
        self.values = values.reshape(shape, order="F" if is_fortran else "C")


class _MakeType:
    """Called in place of `numpy.dtype`. Without attributes that could be set."""

    __slots__ = ()

    def __call__(self, name: Any, align: Any, copy: Any) -> _Type:
        return _Type(name)


class _MakeArray:
    """Called in place of NumPy's `_reconstruct`."""

    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> _Array:
        return _Array()


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _MakeType(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Never imports anything."""
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which these files never hold"
            )
        return _STAND_INS[module, name]
