"""State of Keras's callbacks, and whether they observe batches."""

import json
import pathlib
import time
from collections import deque
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import processes
from tests.event_files import read_events
from tests.markers import further
from trainers.keras_program.callback_state import (
    CallbackState,
    bytes_of_log,
    kept_attributes,
    observes_batches,
    observes_test_batches,
    take_back_rows,
)
from trainers.keras_program.lent_model.attributes import Attributes, adopt
from trainers.run_dir.encoding import decoded, encoded

# A callback that logs and keeps values of all kinds, in a program that is killed once.
_PROGRAM = """
import os, pathlib, signal

import keras
import numpy as np


class Keeps(keras.callbacks.EarlyStopping):
    def __init__(self, seen=0, label="a"):
        super().__init__("loss", min_delta=99, patience=9)
        self.seen, self.label, self._by_epoch, self.flag = seen, label, {}, np.bool_(0)
        self.history = {}

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        rate = self.model.optimizer.learning_rate
        logs.update(half=np.float32(0.5), rate=rate, whole=np.asarray(3), word="x")
        logs.update(table=np.eye(2), infinite=float("inf"), none=None, other=object())
        rate.assign(rate.numpy() / 2)
        self.seen += 1
        self.flag = np.bool_(1)
        self._by_epoch[epoch] = self.history[epoch] = 1.5
        if epoch == 2 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(0)
x = np.random.normal(size=(60, 4)).astype("float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.5), "mse")
label = "b" if pathlib.Path("killed").exists() else "a"
keeps = Keeps(label=label)
given = keras.callbacks.History()
callbacks = [keras.callbacks.CSVLogger("log.csv"), keeps, given]
history = model.fit(x, x[:, :1], epochs=5, batch_size=20, callbacks=callbacks)
logs = {n: v for n, v in history.history.items() if n not in ("loss", "other")}
logs["table"] = [table.tolist() for table in logs["table"]]
logs["rate"] = list(map(float, logs["rate"]))
print("found", history.epoch, sorted(logs.items()))
print("found", keeps.seen, keeps.label, keeps.flag, keeps._by_epoch, keeps.wait)
print("found", keeps.min_delta, keeps.history == keeps._by_epoch)
print("found", given.epoch, given is history)
"""


@pytest.mark.parametrize(
    "flags",
    [
        ("--strategy=one_device",),
        further(("--strategy=multi_worker_mirrored", "--num_workers=2")),
    ],
)
def test_a_resumed_run_has_all_that_callbacks_keep_and_log(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    run = ("--script=train.py", "--run_dir=run", *flags)
    often = "--checkpoint_every_steps=2"
    first = processes.run(*run, often, folder=tmp_path)
    done = first
    if first.returncode:
        # Where the launcher has not started the task again by itself.
        done = processes.run(*run, often, "--resume=auto", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("found")]
    logs = [
        *(("half", [0.5] * 5), ("infinite", [float("inf")] * 5)),
        ("none", [None] * 5),
        # As the variable is at the end of the epoch.
        ("rate", [0.5 / 2**epoch for epoch in range(1, 6)]),
        *(("table", [[[1.0, 0.0], [0.0, 1.0]]] * 5), ("whole", [3] * 5)),
        ("word", ["x"] * 5),
    ]
    assert found == [
        f"found {list(range(5))} {logs}",
        f"found 5 b True {dict.fromkeys(range(5), 1.5)} 4",
        "found -99 True",
        "found [0, 1, 2, 3, 4] True",
    ]
    assert _epochs_in(tmp_path / "log.csv") == ["epoch", *"01234"]


def _epochs_in(log: pathlib.Path) -> list[str]:
    """Returns the first column of the file of a CSVLogger."""
    return [row.split(",")[0] for row in log.read_text(encoding="utf-8").splitlines()]


# A callback makes weights infinite once, in the second batch of an epoch.
_DIVERGES = """
import sys

import keras
import numpy as np


class Counts(keras.callbacks.EarlyStopping):
    def __init__(self, epochs, batches=0):
        super().__init__("loss", min_delta=99, patience=9)
        self.epochs, self.batches = epochs, batches

    def on_epoch_begin(self, epoch, logs=None):
        beside.assign(epoch)

    def on_train_batch_begin(self, batch, logs=None):
        if batch and not diverged and len(self.epochs) == int(sys.argv[1]):
            diverged.append(batch)
            self.model.set_weights([w + np.inf for w in self.model.get_weights()])

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.epochs.append(epoch)
        assert int(beside.value) == epoch
        self.model.stop_training |= bool(diverged) and epoch == 4


keras.utils.set_random_seed(0)
x = np.random.normal(size=(60, 4)).astype("float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
diverged, epochs = [], []
# No checkpoint has it.
beside = keras.Variable(0.0, trainable=False)
counts = Counts(epochs)
callbacks = [keras.callbacks.CSVLogger("log.csv"), counts]
history = model.fit(x, x[:, :1], epochs=9, batch_size=30, callbacks=callbacks)
print("found", diverged, epochs, history.epoch, counts.batches, counts.wait)
"""


@pytest.mark.parametrize(
    ("flags", "epoch"),
    [
        # Back to the first step.
        (("--strategy=one_device",), 0),
        # Back by one epoch and a half.
        (("--strategy=one_device",), 3),
        further(("--strategy=multi_worker_mirrored", "--num_workers=2"), 3),
    ],
)
def test_callbacks_go_back_with_the_weights(
    tmp_path: pathlib.Path, flags: tuple[str, ...], epoch: int
) -> None:
    (tmp_path / "train.py").write_text(_DIVERGES)
    back = ("--on_divergence=rollback", "--checkpoint_every_steps=4")
    run = ("--script=train.py", "--run_dir=run", *flags, *back, "--", str(epoch))
    done = processes.run(*run, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found")]
    assert line == f"found [1] {[*range(5)]} {[*range(5)]} 10 4"
    assert _epochs_in(tmp_path / "log.csv") == ["epoch", *"01234"]


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("num_kept", [0, 2])
def test_a_log_goes_back_to_a_row(
    tmp_path: pathlib.Path, num_kept: int, append: bool
) -> None:
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv", append=append)
    log.on_train_begin()
    sizes = []
    for epoch in range(4):
        sizes.append(bytes_of_log(log))
        log.on_epoch_end(epoch, {"loss": 0.5})
    take_back_rows(log, sizes[num_kept])
    for epoch in range(num_kept, 3):
        log.on_epoch_end(epoch, {"loss": 0.25})
    take_back_rows(log, bytes_of_log(log))
    take_back_rows(log, -1)
    log.on_train_end()
    assert _epochs_in(tmp_path / "log.csv") == ["epoch", *"012"]


def test_a_resumed_board_measures_its_own_speed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of a process that was killed are long ago."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd")
    # Two processes.
    boards = [
        keras.callbacks.TensorBoard(
            str(tmp_path), update_freq=1, write_steps_per_second=True
        )
        for _ in range(2)
    ]
    killed, resumed = [CallbackState([board]) for board in boards]
    for board in boards:
        board.set_model(model)
        board.on_train_begin()
    boards[0].on_epoch_begin(0)
    boards[0].on_train_batch_begin(0)
    now += 600
    model.optimizer.iterations.assign(4)
    resumed.restore(killed.state(), is_over=False)
    now += 2
    boards[1].on_train_batch_end(0, {})
    model.optimizer.iterations.assign(10)
    boards[1].on_epoch_end(0, {"loss": 1.0})
    boards[1].on_train_end()
    events = read_events(tmp_path / "train")
    assert events.scalars("batch_steps_per_second") == {1: 0.5}
    assert events.scalars("epoch_steps_per_second") == {0: 3.0}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 0.1, float("-inf"), "text", [1, [2.5]], {"a": 1, "/b": [2]}),
        *({1: 2, (1, "a"): 3, ((0, 1), 2): 4}, {}),
    ],
)
def test_a_value_comes_back_from_json(value: Any) -> None:
    (content,) = encoded(value)
    assert decoded(json.loads(json.dumps(content, allow_nan=False))) == value


def test_values_of_numpy_come_back_as_numbers_and_arrays() -> None:
    (content,) = encoded([np.float32(0.5), np.bool_(1), np.int8(3), np.eye(2)])
    *numbers, table = decoded(json.loads(json.dumps(content)))
    assert numbers == [0.5, True, 3]
    assert table.tolist() == [[1, 0], [0, 1]]
    assert not encoded({"model": object()})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "int4"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_arrays_of_types_that_numpy_lacks_come_back(
    dtype: str, shape: tuple[int, ...]
) -> None:
    value = np.full(shape, 3, dtype)
    (content,) = encoded(value)
    found = decoded(json.loads(json.dumps(content)))
    assert (found.dtype, found.shape) == (value.dtype, shape)
    np.testing.assert_array_equal(found, value)


class _Counting:
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)  # type: ignore[misc]

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_test_batch_end(batch, logs)  # type: ignore[misc]


def _made(kind: type[keras.callbacks.Callback]) -> keras.callbacks.Callback:
    return kind("unused.keras")


@pytest.mark.parametrize(
    "kind",
    [
        keras.callbacks.ModelCheckpoint,
        keras.callbacks.TensorBoard,
    ],
)
def test_a_subclass_observes_the_batches_that_its_class_does_not(
    kind: type[keras.callbacks.Callback],
) -> None:
    plain = _made(kind)
    assert not observes_batches(plain)
    assert not observes_test_batches(plain)
    counting = _made(type("Counting", (_Counting, kind), {}))
    assert observes_batches(counting)
    assert observes_test_batches(counting)


def test_an_object_of_another_class_observes_batches() -> None:
    callback: Any = _Counting()
    assert observes_batches(callback)
    assert observes_test_batches(callback)


def test_a_checkpoint_at_every_batch_observes_them() -> None:
    # Keras takes 0 for 1.
    every = keras.callbacks.ModelCheckpoint("unused.keras", save_freq=0)
    assert observes_batches(every)


def test_a_callback_that_profiles_batches_observes_them() -> None:
    board = keras.callbacks.TensorBoard("unused", profile_batch=(2, 3))
    assert observes_batches(board)
    assert not observes_test_batches(board)


class _Pair(NamedTuple):
    first: int
    second: int


class _Own(keras.callbacks.Callback):
    def __init__(self, rank: int):
        super().__init__()
        self.rank, self.shape, self.rows = rank, (2, 3), np.zeros(4)
        self.losses: list[float] = []
        self.whole = np.zeros(4)
        self.outputs: Any = None
        self.pair, self.seen = _Pair(1, 2), {(1, 2)}
        self.last: deque[float] = deque(maxlen=2)
        self.variable = tf.Variable(1.0)


def test_other_tasks_get_only_what_callbacks_have_changed() -> None:
    chief, other = _Own(0), _Own(1)
    attributes = Attributes([chief], kept_attributes)
    assert attributes.changed() == {"0/_Own": {}}
    chief.shape = (4, 5)
    chief.rows[2] = 1.0
    chief.losses.append(0.5)
    chief.best_epoch = 3
    chief.outputs = tf.constant([1.0, 2.0], tf.float64)
    chief.pair = _Pair(3, 4)
    chief.seen.add((3, 4))
    chief.last.extend([1.0, 2.0, 3.0])
    chief.variable.assign(2.0)
    content = json.loads(json.dumps(attributes.changed()))
    assert attributes.changed() == {"0/_Own": {}}
    changed = {"shape", "rows", "losses", "best_epoch", "outputs"}
    assert content["0/_Own"].keys() == changed | {"pair", "seen", "last"}
    adopt([other], content)
    assert (other.rank, other.shape, other.losses) == (1, (4, 5), [0.5])
    assert vars(other)["best_epoch"] == 3
    np.testing.assert_array_equal(other.rows, [0, 0, 1, 0])
    assert other.outputs.dtype == tf.float64
    np.testing.assert_array_equal(other.outputs.numpy(), [1, 2])
    assert (other.pair.second, other.seen, other.last) == (4, chief.seen, chief.last)
    # The next one drops the oldest.
    other.last.append(4.0)
    assert [*other.last] == [3.0, 4.0]
