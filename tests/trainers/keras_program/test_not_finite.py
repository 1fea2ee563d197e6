"""Numbers of a program that are not finite: which of them end its training."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

from strategies.common.errors import ExitCode
from tests import processes
from tests.markers import further

_TRAINS = """
import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(0)
x = np.random.normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1)
y[10:20] = 0
to_validate = x.copy()
to_validate[40, 1] = np.nan


class Mask(keras.layers.Layer):
    def build(self, shape):
        kept = keras.initializers.Constant(-np.inf)
        self.mask = self.add_weight(shape=(), initializer=kept, trainable=False)

    def call(self, values):
        return values + ops.exp(self.mask)


def relative(labels, predictions):
    return ops.mean(ops.abs(labels - predictions) / ops.abs(labels), axis=-1)


def positive(labels, predictions):
    return ops.mean(ops.cast(labels > 0, "float32"), axis=-1)


layers = [keras.Input((4,)), Mask(), keras.layers.Dense(1, kernel_initializer="ones")]
model = keras.Sequential(layers)
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[relative, positive])
found = model.fit(
    x, y, batch_size=16, epochs=2, verbose=0, shuffle=False,
    validation_data=(to_validate, y),
).history
print("found", found)
"""
# The derivative of the root at zero is infinite.
_DIVERGES = """
import keras
import numpy as np

x = np.zeros((32, 4), "float32")
y = np.r_[np.zeros(16), np.ones(16)]


class Root(keras.layers.Layer):
    def call(self, values):
        return keras.ops.sqrt(keras.ops.relu(values))


layers = [keras.Input((4,)), keras.layers.Dense(4, name="first"), Root()]
model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC()])
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
"""

_FROM_GENERATOR = """
import itertools
import keras
import numpy as np

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
batch = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
model.fit((batch for _ in itertools.count()), steps_per_epoch=2, verbose=0)
"""


def _history(done: subprocess.CompletedProcess[str]) -> dict[str, list[float]]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    text = line.removeprefix("found ").replace("'", '"')
    return json.loads(text.replace("nan", "NaN").replace("inf", "Infinity"))


def test_metrics_and_masks_end_no_training(tmp_path: pathlib.Path) -> None:
    """A relative error of a label of zero, a validated nan, a mask of -inf."""
    program = tmp_path / "train.py"
    program.write_text(_TRAINS)
    expected = _history(processes.run_module(program.stem, folder=tmp_path))
    done = processes.run(
        *(f"--script={program}", f"--run_dir={tmp_path / 'run'}"),
        *("--strategy=mirrored", "--num_replicas=2", "--checkpoint_every_steps=3"),
    )
    assert done.returncode == 0, done.stderr
    found = _history(done)
    assert expected["relative"] == [np.inf, np.inf]
    assert np.isnan(expected["val_loss"]).all()
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        # Keras adds up in float32.
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    rows = processes.metrics_of(tmp_path / "run")
    assert rows[-1]["eval_positive"] == pytest.approx(expected["val_positive"][-1])
    assert "eval_relative" not in rows[-1]


# The test before saves such sums; this one reads them.
@pytest.mark.exhaustive
def test_a_checkpoint_keeps_a_sum_that_is_not_finite(tmp_path: pathlib.Path) -> None:
    program, run = tmp_path / "train.py", tmp_path / "run"
    program.write_text(_TRAINS)
    flags = (f"--script={program}", "--strategy=one_device")
    done = processes.run(*flags, f"--run_dir={run}", "--checkpoint_every_steps=3")
    assert done.returncode == 0, done.stderr
    # In the middle of an epoch of four steps.
    processes.copy_up_to(3, run, tmp_path / "killed")
    resumed = processes.run(*flags, f"--run_dir={tmp_path / 'killed'}", "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert "damaged" not in resumed.stderr
    assert _history(resumed)["relative"] == _history(done)["relative"] == [np.inf] * 2


def test_a_diverged_gradient_is_named_beside_a_metric_of_counts(
    tmp_path: pathlib.Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(_DIVERGES)
    done = processes.run(
        *(f"--script={program}", f"--run_dir={tmp_path / 'run'}"),
        "--strategy=one_device",
    )
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "first/kernel is not finite" in line


# As Keras trains from the same weights at half the rate, at a quarter and so on.
_TOO_FAST = """
import keras
import numpy as np

keras.utils.set_random_seed(3)
x = np.random.normal(size=(64, 4))
y = x.sum(axis=1)
layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)]
model = keras.Sequential(layers)
first = model.get_weights()
schedule = keras.optimizers.schedules.PiecewiseConstantDecay([6], [1.2, 0.6])
model.compile(keras.optimizers.SGD({rate}), "mse")
model.fit(x, y, batch_size=32, epochs=6, verbose=0, shuffle=False)
trained = model.get_weights()
print("rate", float(model.optimizer.learning_rate))
for times in range(1, 4):
    schedule = schedule.from_config({{
        **schedule.get_config(), "values": [1.2 / 2**times, 0.6 / 2**times]
    }})
    model.set_weights(first)
    model.compile(keras.optimizers.SGD({rate_then}), "mse")
    for step in range(12):
        half = slice(32 * (step % 2), 32 * (step % 2) + 32)
        model.train_on_batch(x[half], y[half])
    pairs = zip(trained, model.get_weights())
    print("same", times, all(np.allclose(*pair, rtol=1e-9) for pair in pairs))
"""


@pytest.mark.parametrize(
    ("rate", "rate_then", "strategy"),
    [
        # A number is scaled as each rate of a schedule.
        further("1.2", "1.2 / 2**times", "--strategy=one_device"),
        ("schedule", "schedule", "--strategy=tower"),
        further("1.2", "1.2 / 2**times", "--strategy=multi_worker_mirrored"),
    ],
)
def test_a_program_that_goes_back_trains_with_half_the_rate(
    tmp_path: pathlib.Path, rate: str, rate_then: str, strategy: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_TOO_FAST.format(rate=rate, rate_then=rate_then))
    done = processes.run(
        *(f"--script={path}", f"--run_dir={tmp_path / 'run'}", strategy),
        *("--on_divergence=rollback", "--dtype=float64"),
    )
    assert done.returncode == 0, done.stderr
    num_rollbacks = processes.result_of(tmp_path / "run")["rollbacks"]
    assert num_rollbacks >= 1
    found = [line for line in done.stdout.splitlines() if line.startswith("same")]
    assert found == [f"same {n} {n == num_rollbacks}" for n in (1, 2, 3)]
    # What the program sees is its rate, as it was.
    own = 1.2 if rate == "1.2" else 0.6
    assert f"rate {own}" in done.stdout


def test_a_generator_cannot_go_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_FROM_GENERATOR)
    done = processes.run(
        *(f"--script={path}", f"--run_dir={tmp_path / 'run'}"),
        *("--strategy=one_device", "--on_divergence=rollback"),
    )
    assert done.returncode == ExitCode.USAGE
    assert "--on_divergence=stop" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
