"""Callbacks are called at the moments at which `fit` calls them, with the same logs.

The metrics of the model have the same values then.
"""

import json
import pathlib
from typing import Any

import pytest

from tests import processes
from tests.markers import further

# Every method of a callback; the model is changed in some of them.
_PROGRAM = """
import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
y = x.sum(axis=1)
seen = []


def noted(method):
    def note(self, *place, logs=None):
        # Keras gives logs by position or by name.
        place = list(place)
        if place and not isinstance(place[-1], int):
            logs = place.pop()
        logs = {name: float(value) for name, value in (logs or {}).items()}
        seen.append([method, *place, logs])
        if method.endswith("_end"):
            found = self.model.get_metrics_result()
            seen[-1][-1].update({f"in_{n}": float(v) for n, v in found.items()})
        if method == "on_epoch_end" and place == [0]:
            self.model.set_weights([0.9 * w for w in self.model.get_weights()])
            seen.append(float(self.model.evaluate(x[:10], y[:10], verbose=0)[0]))
        if method == "on_test_batch_end":
            # The first validation ends here.
            self.model.stop_evaluating = "val_loss" not in self.model.history.history

    return note


class Keeps(keras.callbacks.History):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, {**logs, "epochs": epoch + 1.0})
        # The callbacks after this one get it; `on_train_end` does not.
        logs["loss"] = 7.0


parts = "train", "test", "epoch", "train_batch", "test_batch"
methods = [f"on_{part}_{end}" for part in parts for end in ("begin", "end")]
Noting = type("Noting", (keras.callbacks.Callback,), {m: noted(m) for m in methods})
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
metrics = ["mae", keras.metrics.RootMeanSquaredError()]
optimizer = keras.optimizers.SGD(0.1, use_ema=True)
size, steps = map(int, sys.argv[1:])
model.compile(optimizer, "mse", metrics=metrics, steps_per_execution=steps)
swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
keeps = Keeps()
for epochs in (4, 1):
    history = model.fit(
        x, y, batch_size=size, epochs=epochs, validation_split=0.4, validation_freq=2,
        shuffle=False, verbose=0, callbacks=[keeps, Noting(), swap],
    )
    assert history is model.history is keeps
for name, values in history.history.items():
    seen.append([name, *history.epoch, dict(enumerate(values))])
print(json.dumps(seen))
"""


def _plain(program: pathlib.Path, *words: str) -> list[Any]:
    done = processes.run_module(program.stem, *words, folder=program.parent)
    assert done.returncode == 0, done.stderr
    return _seen(done.stdout)


def _seen(output: str) -> list[Any]:
    return json.loads(next(line for line in output.splitlines() if line[:2] == "[["))


@pytest.mark.parametrize(
    "flags",
    [
        ("--strategy=mirrored", "--num_replicas=2"),
        further(("--strategy=multi_worker_mirrored", "--num_workers=2")),
        further(("--strategy=parameter_server", "--update=sync", "--num_workers=2")),
    ],
)
@pytest.mark.parametrize(
    ("words", "num_calls"),
    [
        further(("30", "1"), 53),
        # Executions of 3, 3 and 2 steps, and of 3 and 2 in the validation.
        (("8", "3"), 63),
    ],
)
def test_moments_and_logs_are_those_of_fit(
    tmp_path: pathlib.Path,
    flags: tuple[str, ...],
    words: tuple[str, ...],
    num_calls: int,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(_PROGRAM)
    run = (f"--script={program}", f"--run_dir={tmp_path / 'run'}", *flags)
    done = processes.run(*run, "--", *words)
    assert done.returncode == 0, done.stderr
    found, plain = _seen(done.stdout), _plain(program, *words)
    assert len(plain) == num_calls
    for one, other in zip(found, plain, strict=True):
        if isinstance(other, float):
            assert one == pytest.approx(other, rel=1e-5)
            continue
        *place, logs = one
        assert place == other[:-1]
        # Sums of float32 in another order.
        assert logs == pytest.approx(other[-1], rel=1e-5), place


# A callback asks to stop where the training, an epoch or a batch begins.
_STOPPED = """
import json

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")


def fit(method, *at):
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(epoch)

    def stop(self, *place, logs=None):
        seen.append([method, *place])
        self.model.stop_training |= place[: len(at)] == at

    setattr(Stops, method, lambda self, *given, logs=None: stop(self, *given[:1]))
    seen = []
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(
        x, x[:, 0], batch_size=8, epochs=3, verbose=0, callbacks=[Stops()]
    )
    return [seen, history.epoch, int(model.optimizer.iterations)]


ways = [("on_train_begin",), ("on_epoch_begin", 1), ("on_train_batch_begin", 1)]
print(json.dumps([fit(*way) for way in ways]))
"""


# The next batch after a wish; that a wish stops is in test_program.py.
@pytest.mark.exhaustive
def test_a_batch_follows_a_wish_to_stop_where_it_begins(
    tmp_path: pathlib.Path,
) -> None:
    """`fit` looks for the wish after a batch and after an epoch."""
    program = tmp_path / "train.py"
    program.write_text(_STOPPED)
    done = processes.run(f"--script={program}", f"--run_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    plain = _plain(program)
    assert [num_steps for _, _, num_steps in plain] == [1, 4, 2]
    assert _seen(done.stdout) == plain
