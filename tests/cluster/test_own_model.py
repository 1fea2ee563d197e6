"""Tests of a user's model under strategies of several processes."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests import processes
from tests.trainers.experiments.verify.mutated_projects import plant

pytestmark = pytest.mark.cluster

OWN_MODEL = """
import keras

from models.classification import classifier


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
        self.logits = keras.layers.Dense(num_classes)

    def call(self, inputs, training=False):
        return self.logits(self.block(self.flatten(inputs), training=training))


def build(data, settings):
    model = Own(data.num_classes)
    model(keras.ops.zeros((1, *data.input_shape)))
    return model


SPEC = classifier(build)
"""


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns the project with one more file in models/."""
    plant(tmp_path, None, own=OWN_MODEL)
    return tmp_path


@pytest.mark.parametrize(
    "strategy",
    [
        ("--strategy=multi_worker_mirrored",),
        pytest.param(
            ("--strategy=parameter_server", "--update=async"),
            marks=pytest.mark.exhaustive,
        ),
        ("--strategy=parameter_server", "--update=sync"),
    ],
    ids=" ".join,
)
def test_dropout_and_batch_normalization_train(
    strategy: tuple[str, ...], project: pathlib.Path
) -> None:
    flags = ("--model=own", "--train_steps=200", "--learning_rate=0.005")
    done = processes.run(
        "--run_dir=run", *strategy, *flags, folder=project, PYTHONPATH=str(project)
    )
    assert done.returncode == 0, done.stderr
    result = processes.result_of(project / "run")
    # One device reaches 0.96 to 0.97 here.
    assert result["final"]["eval_accuracy"] > 0.93
    assert_moving_statistics_have_moved(project / "run")


EXIT_FUNCTION = """
import atexit
import os
import pathlib

atexit.register(pathlib.Path(f"ended-{os.getpid()}").touch)
"""


@pytest.mark.parametrize(
    ("strategy", "num_processes"), [("tower", 1), ("multi_worker_mirrored", 2)]
)
def test_exit_functions_are_called_in_every_process_that_trains(
    strategy: str, num_processes: int, project: pathlib.Path
) -> None:
    """TensorFlow's exit functions delete the temporary source files of AutoGraph."""
    (project / "models/own.py").write_text(EXIT_FUNCTION + OWN_MODEL)
    temporary = project / "temporary"
    temporary.mkdir()
    done = processes.run(
        *("--model=own", f"--strategy={strategy}", "--train_steps=2", "--run_dir=run"),
        folder=project,
        PYTHONPATH=str(project),
        TMPDIR=str(temporary),
    )
    assert done.returncode == 0, done.stderr
    assert len(list(project.glob("ended-*"))) == num_processes
    assert list(temporary.rglob("*.py")) == []


def assert_moving_statistics_have_moved(run: pathlib.Path) -> None:
    saved = tf.train.load_checkpoint(str(run / "checkpoints/step-00000200/variables"))
    values = {
        name.split("/")[-3]: saved.get_tensor(name)
        for name in saved.get_variable_to_shape_map()
        if "moving_" in name
    }
    assert set(values) == {"moving_mean", "moving_variance"}
    assert np.abs(values["moving_mean"]).max() > 0.1
    assert (values["moving_variance"] != 1).all()
