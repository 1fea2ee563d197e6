"""--mode=compare of a program that fails with some seeds, and of refused flags."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests import processes

pytestmark = pytest.mark.slow

# The warm-up has fewer epochs. Python's generator has the seed of the run.
_PROGRAM = """
import random
import keras, numpy as np

number = random.random()
rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
history = model.fit(rows, rows[:, 0], batch_size=8, epochs=5, verbose=0)
print(history.history["loss"][4])
assert number < 0.5, "a bad seed"
"""


def test_an_arm_is_given_up_for_refused_flags_and_not_for_a_failed_program(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    done = processes.run(
        *("--mode=compare", "--script=program.py", "--run_dir=out", "--seeds=2"),
        "--arm=refused: --strategy=mirrored --set=strategy.cross_device_reduction=nccl",
        folder=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    conclusion = json.loads((tmp_path / "out" / "comparison.json").read_text("utf-8"))
    runs = {arm["name"]: arm["runs"] for arm in conclusion["arms"]}
    bad, good = runs["keras"]
    assert bad["status"] == "failed"
    assert "a bad seed" in bad["reason"]
    assert good["status"] == "completed"
    tried, not_run = (run["reason"] for run in runs["refused"])
    assert "nccl" in tried
    assert not_run == f"not run: {tried}"
