"""A program trains under a strategy as Keras's own `fit` trains it."""

import functools
import json
import pathlib
import tempfile
from typing import Any

import pytest

from tests import processes
from tests.keras_corpus import path_of
from tests.markers import chosen, further
from tests.trainers.keras_program.beside_fit import (
    FLAGS,
    assert_as_by_fit,
    by_fit,
    under,
)

_RECORDED = pathlib.Path(__file__).with_name("recorded.py")
_RECORDED_MODULE = f"{__package__}.{_RECORDED.stem}"
_OWN_STEPS_PROGRAM = pathlib.Path(__file__).with_name("own_steps")
_CALLS_PROGRAM = pathlib.Path(__file__).with_name("calls_of_fit")

# Programs without random layers, and their arguments.
_DETERMINISTIC = {
    "regression": (),
    "several_inputs_and_outputs": (),
    "sample_weights": (),
    "tagging_with_masks": (),
    "added_losses": (),
    "autoencoder": (),
    "moving_average_of_weights": (),
    "py_dataset": (),
    "own_callbacks": (),
    "fine_tuning": (),
    "kept_optimizer": (),
    "transfer_learning": (),
    "losses_of_batches": (),
    "data_frame": (),
    "embedded_positions": (),
    "divided_optimizer": (),
}
_OPTIMIZERS = (
    *("sgd", "adam", "adamw", "nadam", "adamax", "adagrad", "adadelta", "rmsprop"),
    *("ftrl", "lion", "adafactor", "muon", "schedulefreeadamw"),
)
# Where replicas share a batch.
_STRATEGIES = tuple(name for name in FLAGS if name != "one_device")
# Models of own_steps.py, and strategies that they are also tried under.
_OWN_STEPS = {
    "numbers": "tower",
    "summed": "tower",
    "margins": "multi_worker_mirrored",
    "taught": "parameter_server",
    "averaged": "multi_worker_mirrored",
    "adversaries": "multi_worker_mirrored",
    "parts": "parameter_server",
    "parts_and_error": "multi_worker_mirrored",
    "turns": "tower",
    "replaced": "tower",
    "results": "multi_worker_mirrored",
    "clipped": "tower",
    "spectral": "multi_worker_mirrored",
    "clipped_spectral": "tower",
    "followed": "parameter_server",
    "decorated": "tower",
    "distributed": "multi_worker_mirrored",
    "combined": "multi_worker_mirrored",
    "added": "tower",
    "added_rows": "parameter_server",
    "report": "multi_worker_mirrored",
}
# Models of which each has something that no other of them has. The others show by
# themselves what these have together. A step is the same code under all strategies, and
# which of its updates are computed again does not depend on them.
_OWN_STEPS_SHOWN = (*("combined", "report", "results", "clipped_spectral", "parts"),)


@functools.cache
def _plain(program: str, *arguments: str) -> list[dict[str, Any]]:
    """Runs a program with Keras alone; returns the record of each call of fit."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "record.json"
        words = _words(path, program, *arguments)
        ended = processes.run_module(_RECORDED_MODULE, *words, folder=folder)
        assert ended.returncode == 0, ended.stderr
        return json.loads(path.read_text())


def _under(
    strategy: str, folder: pathlib.Path, program: str, *arguments: str
) -> list[dict[str, Any]]:
    path = folder / "record.json"
    ended = processes.run(
        *FLAGS[strategy],
        f"--script={_RECORDED}",
        f"--run_dir={folder / 'run'}",
        "--",
        *_words(path, program, *arguments),
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(path.read_text())


def _words(path: pathlib.Path, program: str, *arguments: str) -> list[str]:
    # `/` with an absolute path is that path.
    return [str(path), "float64", str(path_of(program)), *arguments]


@pytest.mark.parametrize("strategy", chosen(_STRATEGIES, ("mirrored",)))
@pytest.mark.parametrize(
    "program",
    # Losses that layers add are among the calls of fit below, and several outputs and
    # their weights in test_metric_names.py and ../user_code/test_objective.py.
    chosen(_DETERMINISTIC, ("embedded_positions", "kept_optimizer")),
)
def test_a_program_trains_as_with_fit(
    tmp_path: pathlib.Path, program: str, strategy: str
) -> None:
    found = _under(strategy, tmp_path, program, *_DETERMINISTIC[program])
    assert_as_by_fit(found, _plain(program, *_DETERMINISTIC[program]))


# The test before has such a program on replicas, and the last one a program on servers.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        # Keras has adapters in float32 under any floatx
        # (keras/src/layers/core/embedding.py, `enable_lora`).
        ("low_rank_adapters", "float32"),
        ("kept_optimizer", "float64"),
    ],
)
def test_servers_take_a_second_fit_without_evaluation(
    tmp_path: pathlib.Path, program: str, dtype: str
) -> None:
    """Workers run the steps of the first one until something else needs them."""
    found = _under("parameter_server", tmp_path, program)
    assert_as_by_fit(found, _plain(program), dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", _STRATEGIES)
@pytest.mark.parametrize("optimizer", _OPTIMIZERS)
def test_each_optimizer_updates_as_with_fit(
    tmp_path: pathlib.Path, optimizer: str, strategy: str
) -> None:
    found = _under(strategy, tmp_path, "each_optimizer", optimizer)
    assert_as_by_fit(found, _plain("each_optimizer", optimizer))


@pytest.mark.parametrize(
    ("model", "strategy"),
    chosen(
        [
            *_OWN_STEPS.items(),
            *((model, "mirrored") for model in _OWN_STEPS),
            ("adversaries", "tower"),
        ],
        [(model, "mirrored") for model in _OWN_STEPS_SHOWN],
    ),
)
def test_a_step_of_its_own_trains_as_with_fit(
    tmp_path: pathlib.Path, model: str, strategy: str
) -> None:
    found = _under(strategy, tmp_path, str(_OWN_STEPS_PROGRAM), model)
    assert_as_by_fit(found, _plain(str(_OWN_STEPS_PROGRAM), model))


@pytest.mark.parametrize(
    ("calls", "strategy"),
    [
        ("parts_for_validation", "mirrored"),
        ("weights_of_one_part", "mirrored"),
        further("steps_of_one_part", "mirrored"),
        ("generators", "mirrored"),
        ("labels_without_a_loss", "mirrored"),
        ("last_axis_of_one", "mirrored"),
        ("outputs_of_batches", "one_device"),
        further("outputs_of_shards", "mirrored"),
        # Lengths are those of batches before they are divided.
        ("lengths", "one_device"),
        further("lengths", "mirrored"),
        further("random_batches", "multi_worker_mirrored"),
        further("random_parts", "multi_worker_mirrored"),
        ("random_parts", "parameter_server"),
        further("random_parts_of_epochs", "mirrored"),
        further("random_parts_of_epochs", "multi_worker_mirrored"),
        further("random_parts_of_epochs", "parameter_server"),
        further("random_parts_and_callback", "mirrored"),
        ("random_parts_and_callback", "multi_worker_mirrored"),
    ],
)
def test_a_call_of_fit_does_what_keras_does(
    tmp_path: pathlib.Path, calls: str, strategy: str
) -> None:
    found = _under(strategy, tmp_path, str(_CALLS_PROGRAM), calls)
    assert_as_by_fit(found, _plain(str(_CALLS_PROGRAM), calls))


_NORMALIZED = """
import keras
import numpy as np
import tensorflow as tf

class Normalized(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, use_bias=False)
        self.norm = keras.layers.BatchNormalization(synchronized=True)
        self.head = keras.layers.Dense(1)

    def call(self, x, training=None):
        return self.head(self.norm(self.hidden(x), training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

keras.utils.set_random_seed(7)
draw = np.random.default_rng(3)
model = Normalized()
model.compile("sgd", "mse")
# The last batch has five rows for two replicas, and the one of 41 rows a single one.
for rows in (29, 41):
    x, y = draw.normal(size=(rows, 4)), draw.normal(size=(rows, 1))
    model.fit(x, y, batch_size=8, epochs=2)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_unequal_shards_share_the_moments_of_a_step_of_its_own(
    tmp_path: pathlib.Path, strategy: str
) -> None:
    plain = by_fit(tmp_path, _NORMALIZED)
    found = under(tmp_path, _NORMALIZED, *FLAGS[strategy])
    assert_as_by_fit(found, plain)


def test_a_sum_over_a_normalized_batch_is_one_over_replicas(
    tmp_path: pathlib.Path,
) -> None:
    """The gradient of a batch is not the sum of its halves', which have other moments.

    Replicas took it for a mean, so that a step was half of that of `fit`.
    """
    text = _NORMALIZED.replace(
        "self.compute_loss(x, y, self(x, training=True))",
        "tf.reduce_sum((y - self(x, training=True)) ** 2) / 8",
    )
    plain = by_fit(tmp_path, text)
    found = under(tmp_path, text, *FLAGS["mirrored"])
    assert_as_by_fit(found, plain)


_AVERAGED = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers

class Averaged(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(4), layers.Dense(4)])
        self.head = layers.Dense(4)

    def call(self, x):
        return self.head(self.inner(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        pairs = (self.optimizer, self.inner), (self.of_head, self.head)
        for optimizer, part in pairs:
            # In another order than the optimizer was built.
            weights = part.trainable_variables[::-1]
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

keras.utils.set_random_seed(7)
draw = np.random.default_rng(3)
x, y = draw.normal(size=(24, 4)), draw.normal(size=(24, 4))
model = Averaged()
model(x)
average = {"use_ema": True, "ema_momentum": 0.9}
model.of_head = keras.optimizers.SGD(0.05, **average)
model.compile(keras.optimizers.SGD(0.05, **average), "mse")
model.optimizer.build(model.inner.trainable_variables)
model.fit(x, y, batch_size=8, epochs=2)
"""


def test_averages_go_to_their_weights_after_a_step_of_its_own(
    tmp_path: pathlib.Path,
) -> None:
    """The compiled optimizer alone replaces weights, in the order of its `build`."""
    plain = by_fit(tmp_path, _AVERAGED)
    found = under(tmp_path, _AVERAGED, *FLAGS["mirrored"])
    assert_as_by_fit(found, plain)
