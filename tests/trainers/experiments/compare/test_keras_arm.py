"""The arm `keras` of a comparison: a program's own `fit`, as if it ran alone."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests import processes

pytestmark = pytest.mark.slow

# Called by a model that has run an evaluation of several steps before.
_PROGRAM = """
import json, sys
import keras, numpy as np

steps_per_execution, epochs = map(int, sys.argv[2:])
keras.utils.set_random_seed(0)
rows = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(
    keras.optimizers.SGD(0.02), "mse", metrics=["mae"],
    steps_per_execution=steps_per_execution,
)
before = model.evaluate(rows, rows[:, 0], batch_size=8, verbose=0)
history = model.fit(
    rows[:70], rows[:70, 0], batch_size=7, epochs=epochs, shuffle=False, verbose=0,
    validation_data=(rows[70:], rows[70:, 0]), validation_batch_size=6,
)
after = model.evaluate(rows, rows[:, 0], batch_size=8, verbose=0)
content = {"fit": history.history, "before": before, "after": after}
content["steps_per_execution"] = model.steps_per_execution
with open(sys.argv[1], "w") as file:
    json.dump(content, file)
"""


def _content(done: Any, path: pathlib.Path) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text("utf-8"))


# An epoch has 10 steps and the validation 5.
@pytest.mark.parametrize("steps_per_execution", [4, 32])
def test_executions_of_several_steps_end_with_the_epoch(
    tmp_path: pathlib.Path, steps_per_execution: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    words = (str(steps_per_execution), "3")
    alone = tmp_path / "alone.json"
    plain = processes.run_module("program", str(alone), *words, folder=tmp_path)
    expected = _content(plain, alone)
    inside = tmp_path / "inside.json"
    run = processes.run(
        *(f"--script={program}", "--strategy=one_device"),
        *("--set=model.keras_fit=true", f"--run_dir={tmp_path / 'run'}"),
        *("--", str(inside), *words),
    )
    found = _content(run, inside)
    assert found["steps_per_execution"] == steps_per_execution
    for name in ("before", "after"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name
    assert found["fit"].keys() == expected["fit"].keys()
    for name, values in expected["fit"].items():
        assert found["fit"][name] == pytest.approx(values, rel=1e-5), name
    assert processes.result_of(tmp_path / "run")["steps"] == 30
