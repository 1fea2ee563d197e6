"""Workers that run a program without its callbacks, and write its files elsewhere."""

import json
import pathlib
import random
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from strategies.common.errors import UsageError
from trainers.keras_program.chief_callbacks import of_chief
from trainers.keras_program.program_variables import ProgramVariables
from trainers.keras_program.script import replaced_fit
from trainers.keras_program.streams.random_state import random_state, set_random_state
from trainers.user_code.checks import check_loaded


def test_variables_of_a_program_are_made_outside_of_its_fit() -> None:
    """A strategy makes others, of which each worker may have its own values."""
    variables = ProgramVariables()
    with variables.noted():
        own = [tf.Variable(float(value)) for value in range(20)]
        unread = tf.Variable(2.0)
        # Also puts another graph in place of the default one.
        keras.utils.clear_session()
        own.append(tf.Variable(5.0))
        with variables.not_noted():
            of_strategy = tf.Variable(3.0)
    of_run = tf.Variable(4.0)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        return tf.add_n(own[::-1]) + tf.function(lambda: of_strategy + of_run)()

    found = variables.read_in(step.get_concrete_function().graph)
    # Each worker has to name them in the same order.
    assert [*map(id, found)] == [*map(id, own)]
    del unread


def test_other_workers_load_what_they_have_exported(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "exported"
    module = tf.Module()
    module.seven = tf.Variable(7.0)
    model = keras.Sequential([layers.Input((2,)), layers.Dense(1)])
    with replaced_fit(lambda *_: None, writes=False):
        model.export(path, verbose=False)
        layer = layers.TFSMLayer(path, call_endpoint="serve")
        frozen = layers.TFSMLayer(path, call_endpoint="serve", trainable=False)
        tf.saved_model.save(module, tmp_path / "module")
        assert tf.saved_model.load(tmp_path / "module").seven.numpy() == 7.0
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(layer(x), model(x), rtol=1e-6)
    assert not list(tmp_path.iterdir())
    # The variables of its functions are not those that a strategy makes.
    check_loaded(keras.Sequential([layers.Input((2,)), frozen]))
    with pytest.raises(UsageError, match=r"tfsm_layer.*trainable=False"):
        check_loaded(keras.Sequential([layers.Input((2,)), layer]))


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("has_drawn", [False, True])
def test_a_random_state_is_sent(seed: int | None, has_drawn: bool) -> None:
    """TensorFlow has no seed at first, and then takes another for each operation."""

    def draw() -> list[float]:
        of_keras = float(keras.random.normal([]))
        of_tensorflow = float(tf.random.normal([])) * (seed is not None)
        return [random.random(), np.random.normal(), of_keras, of_tensorflow]

    keras.utils.set_random_seed(0)
    tf.random.set_seed(seed)
    if has_drawn:
        draw()
    state = json.loads(json.dumps(random_state()))
    drawn = draw()
    keras.utils.set_random_seed(1)
    set_random_state(state)
    assert draw() == drawn


def test_a_text_of_any_length_is_sent() -> None:
    """Every byte arrives, up to the last one."""
    sent: list[Any] = []
    chief: Any = types.SimpleNamespace(
        broadcast_from_chief=lambda variables: sent.extend(v.numpy() for v in variables)
    )
    # Each of the 256 bytes, and lengths that are no multiple of eight.
    texts = ["".join(map(chr, range(1, 1 + length))) for length in (0, 5, 8, 2_000)]
    for text in texts:
        assert of_chief(chief, text) == text
    received = iter(sent)
    other: Any = types.SimpleNamespace(
        broadcast_from_chief=lambda variables: [
            variable.assign(next(received)) for variable in variables
        ]
    )
    assert [of_chief(other, "another") for _ in texts] == texts
