"""Programs as texts, run by Keras's own `fit` and under a strategy, in float64."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests import processes

_RECORDED = pathlib.Path(__file__).with_name("recorded.py")
# Each call of fit: its epochs, history and weights.
Record = Sequence[dict[str, Any]]


def by_fit(folder: pathlib.Path, text: str) -> Record:
    module = f"{__package__}.{_RECORDED.stem}"
    ended = processes.run_module(module, *_program(folder, text), folder=folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "record.json").read_text())


def under(folder: pathlib.Path, text: str, *flags: str) -> Record:
    words = ("--", *_program(folder, text))
    run = (f"--script={_RECORDED}", f"--run_dir={folder / 'run'}", *words)
    ended = processes.run(*flags, *run)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "record.json").read_text())


def _program(folder: pathlib.Path, text: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(text)
    return [str(folder / "record.json"), "float64", str(path)]


def assert_same(found: Record, plain: Record, tolerance: float = 1e-9) -> None:
    """Compares the losses of epochs and the weights of each `fit`.

    Losses are counted in float32.
    """
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(
            one["history"]["loss"], other["history"]["loss"], rtol=1e-6
        )
        for weights, expected in zip(one["weights"], other["weights"], strict=True):
            np.testing.assert_allclose(weights, expected, rtol=tolerance)
