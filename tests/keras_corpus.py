"""The programs of tests/keras_programs, and the libraries that some of them need."""

import importlib.util
import pathlib

import pytest

from tests import processes

_FOLDER = processes.ROOT / "tests" / "keras_programs"
_LIBRARIES = {
    "data_frame": ("pandas", "make install-test"),
    "gpt2": ("keras_hub", "make install-test"),
    "gpt2_weighted_tokens": (
        "keras_hub",
        "make install-test",
    ),
    "grain_pipeline": ("grain", "make install-test"),
    # PyTorch takes 200 MB and one program needs it, so `install-test` leaves it out.
    "torch_loader": ("torch", "pip install '.[bench]'"),
}

NAMES = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "__init__")


def path_of(name: str) -> pathlib.Path:
    """Returns the file of a program; skips the test where its library is missing."""
    library, remedy = _LIBRARIES.get(name, (None, None))
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is missing: {remedy}")
    return _FOLDER / f"{name}.py"
