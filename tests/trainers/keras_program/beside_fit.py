"""Programs as texts, run by Keras's own `fit` and under a strategy, in float64."""

import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests import processes

_RECORDED = pathlib.Path(__file__).with_name("recorded.py")
# Each call of fit: its epochs, history and weights.
Record = Sequence[dict[str, Any]]

FLAGS = {
    "one_device": ("--strategy=one_device",),
    "mirrored": ("--strategy=mirrored", "--num_replicas=2"),
    "tower": ("--strategy=tower", "--num_replicas=3"),
    "multi_worker_mirrored": ("--strategy=multi_worker_mirrored", "--num_workers=2"),
    "parameter_server": (
        *("--strategy=parameter_server", "--update=sync"),
        *("--num_workers=2", "--num_ps=1"),
    ),
}

# Part of its own change by which a weight may be off. A sum over replicas is rounded in
# another order than that over a batch, and Adam's division by the root of a small
# number magnifies it.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
# Roundings of the variable's largest weight by which it may be off beside that: a sum
# whose terms cancel has the error of its terms. 32 were found.
_ROUNDINGS = 100


def by_fit(folder: pathlib.Path, text: str) -> Record:
    module = f"{__package__}.{_RECORDED.stem}"
    ended = processes.run_module(module, *_program(folder, text), folder=folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "record.json").read_text())


def under(folder: pathlib.Path, text: str, *flags: str) -> Record:
    ended = run_under(folder, text, *flags)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "record.json").read_text())


def run_under(
    folder: pathlib.Path, text: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    words = ("--", *_program(folder, text))
    run = (f"--script={_RECORDED}", f"--run_dir={folder / 'run'}", *words)
    return processes.run(*flags, *run, folder=folder)


def _program(folder: pathlib.Path, text: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(text)
    return [str(folder / "record.json"), "float64", str(path)]


def assert_as_by_fit(found: Record, plain: Record, dtype: str = "float64") -> None:
    """Compares all that is recorded of each `fit`, and of what comes after it."""
    for one, other in zip(found, plain, strict=True):
        assert one["epochs"] == other["epochs"]
        _assert_same_logs(one["history"], other["history"])
        for logs, expected in zip(one["logs"], other["logs"], strict=True):
            _assert_same_logs(logs, expected)
        _assert_same_weights(one, other, dtype)
        for values, expected in zip(one["after"], other["after"], strict=True):
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)


def _assert_same_logs(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        rtol = _tolerance_of(name)
        np.testing.assert_allclose(found[name], values, rtol=rtol, err_msg=name)


def _assert_same_weights(
    one: dict[str, Any], other: dict[str, Any], dtype: str
) -> None:
    initial = other["initial"] or [np.zeros(np.shape(w)) for w in other["weights"]]
    for values, expected, before in zip(
        one["weights"], other["weights"], initial, strict=True
    ):
        largest = np.max(np.abs([expected, before]), initial=0.0)
        np.testing.assert_allclose(
            np.subtract(values, before),
            np.subtract(expected, before),
            rtol=_TOLERANCES[dtype],
            atol=_ROUNDINGS * np.finfo(dtype).eps * largest,
        )


def _tolerance_of(name: str) -> float:
    # Keras counts in float32 under any floatx, where a metric has that type.
    in_float32 = ("accuracy", "acc", "f1_score", "size", "learning_rate")
    return 1e-5 if any(part in name for part in in_float32) else 1e-6
