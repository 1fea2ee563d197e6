"""The arm `keras` of a comparison: a program's own `fit`, as if it ran alone."""

import json
import pathlib
import re
from typing import Any

import pytest

from tests import processes
from tests.markers import further

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
@pytest.mark.parametrize("steps_per_execution", [4, further(32)])
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


_STOPPED = """
import json, sys
import keras, numpy as np

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.stops(batch == 6 and self.epoch == 1 and sys.argv[2] == "batch")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.stops(epoch == 1)

    def stops(self, now):
        self.model.stop_training = self.model.stop_training or now

keras.utils.set_random_seed(0)
rows = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), "mse")
history = model.fit(
    rows, rows[:, 0], batch_size=7, epochs=50, shuffle=False, verbose=0,
    callbacks=[Stop()],
)
with open(sys.argv[1], "w") as file:
    json.dump(history.history["loss"], file)
"""


@pytest.mark.parametrize(
    ("moment", "num_steps"),
    [("epoch", 20), pytest.param("batch", 17, marks=pytest.mark.exhaustive)],
)
def test_a_training_that_a_callback_stops_reports_its_last_steps(
    tmp_path: pathlib.Path, moment: str, num_steps: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_STOPPED)
    alone = tmp_path / "alone.json"
    plain = processes.run_module("program", str(alone), moment, folder=tmp_path)
    first, second = _content(plain, alone)
    run = processes.run(
        *(f"--script={program}", "--strategy=one_device", "--summary_every_steps=15"),
        *("--set=model.keras_fit=true", f"--run_dir={tmp_path / 'run'}"),
        *("--", str(tmp_path / "inside.json"), moment),
    )
    assert _content(run, tmp_path / "inside.json") == pytest.approx([first, second])
    rows = [
        json.loads(line)
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [15, num_steps]
    # Of batches of equal size, so that the mean over all steps is that of Keras.
    losses = [15 * rows[0]["train_loss"], (num_steps - 15) * rows[1]["train_loss"]]
    assert sum(losses) == pytest.approx(10 * first + (num_steps - 10) * second)
    result = processes.result_of(tmp_path / "run")
    assert result["steps"] == num_steps
    assert result["final"]["train_loss"] == rows[1]["train_loss"]


_WAITING = """
import time
import keras, numpy as np

class Wait(keras.callbacks.Callback):
    seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.1)
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.since)
        time.sleep(0.1)

rows = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(rows, rows[:, 0], batch_size=7, verbose=0, callbacks=[Wait()])
print("median", 1e3 * np.median(Wait.seconds))
"""


@pytest.mark.parametrize("keras_fit", ["false", "true"])
def test_neither_callbacks_nor_preparations_count_as_steps(
    keras_fit: str, tmp_path: pathlib.Path
) -> None:
    """Strategies call callbacks, and trace, outside of their steps."""
    program = tmp_path / "program.py"
    program.write_text(_WAITING)
    run = processes.run(
        *(f"--script={program}", "--strategy=one_device"),
        *(f"--set=model.keras_fit={keras_fit}", f"--run_dir={tmp_path / 'run'}"),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = processes.result_of(tmp_path / "run")
    speed, milliseconds = result["throughput"].values()
    # A trace, or operations that observe, take longer than the nine steps after it.
    assert 2 * milliseconds["p99"] < 1e3 * result["seconds"]["train"]
    # By the clock of the program, between its waits.
    (median,) = re.findall(r"^median (.*)$", run.stdout, re.MULTILINE)
    assert 0.1 < milliseconds["p50"] / float(median) < 1.1
    assert 0.3 < 7e3 / speed / milliseconds["p50"] < 3
