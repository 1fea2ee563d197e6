"""Tests of a user's model under strategies of several processes."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests import processes
from tests.markers import further

pytestmark = pytest.mark.cluster

OWN_MODEL = """
import keras


class Block(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)
        self.normalize = keras.layers.BatchNormalization(momentum=0.9)
        self.drop = keras.layers.Dropout(0.2)

    def call(self, inputs, training=False):
        hidden = keras.ops.relu(self.normalize(self.dense(inputs), training=training))
        return self.drop(hidden, training=training)


class Own(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.block = Block(32)
        self.logits = keras.layers.Dense(num_classes, activation="softmax")

    def call(self, inputs, training=False):
        return self.logits(self.block(self.flatten(inputs), training=training))


def model(data):
    network = Own(data.num_classes)
    network.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
"""


# test_clusters.py compares such a model on workers with one on towers.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy",
    [
        ("--strategy=multi_worker_mirrored",),
        ("--strategy=parameter_server", "--update=async"),
        ("--strategy=parameter_server", "--update=sync"),
    ],
    ids=" ".join,
)
def test_dropout_and_batch_normalization_train(
    strategy: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL, encoding="utf-8")
    flags = ("--model=own.py:model", "--train_steps=100", "--learning_rate=0.01")
    quiet = ("--eval_every_steps=none", "--set=report.histogram_every_steps=none")
    done = processes.run("--run_dir=run", *strategy, *flags, *quiet, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = processes.result_of(tmp_path / "run")
    # One device reaches 0.97 here.
    assert result["final"]["eval_accuracy"] > 0.93
    assert_moving_statistics_have_moved(tmp_path / "run")


# A variable TMPDIR would have every process start as a new program.
EXIT_FUNCTION = """
import atexit
import os
import pathlib
import tempfile

tempfile.tempdir = os.path.abspath("temporary")
atexit.register(pathlib.Path(f"ended-{os.getpid()}").touch)
"""


# Every process of the program ends by the same function.
@pytest.mark.parametrize(
    ("strategy", "num_processes"), [("tower", 1), further("multi_worker_mirrored", 2)]
)
def test_exit_functions_are_called_in_every_process_that_trains(
    strategy: str, num_processes: int, tmp_path: pathlib.Path
) -> None:
    """TensorFlow's exit functions delete the temporary source files of AutoGraph."""
    (tmp_path / "own.py").write_text(EXIT_FUNCTION + OWN_MODEL, encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = processes.run(
        *("--model=own.py:model", f"--strategy={strategy}", "--train_steps=2"),
        *("--run_dir=run", "--set=report.histogram_every_steps=none"),
        *processes.NO_EVALUATION,
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("ended-*"))) == num_processes
    assert list(temporary.rglob("*.py")) == []


def assert_moving_statistics_have_moved(run: pathlib.Path) -> None:
    saved = tf.train.load_checkpoint(str(run / "checkpoints/step-00000100/variables"))
    values = {
        name.split("/")[-3]: saved.get_tensor(name)
        for name in saved.get_variable_to_shape_map()
        if "moving_" in name
    }
    assert set(values) == {"moving_mean", "moving_variance"}
    assert np.abs(values["moving_mean"]).max() > 0.1
    assert (values["moving_variance"] != 1).all()
