"""Random numbers of the training loop, in Keras's own `fit`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from strategies.common.types import Batch
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import keyed_states, seed_states, step_key
from trainers.model.random_numbers.tensorflow_draws import TensorFlowDraws


class RandomNumbersOfFit:
    """Random numbers that replica 0 of the other runs draws, step by step."""

    def __init__(self, model: keras.Model, seed: int):
        """Finds the states of the model's generators."""
        self._model = model
        self._seed = seed
        self._states = seed_states(model)
        # Indices of the examples of the present batch, and the key of its step.
        self._examples = tf.Variable(
            tf.zeros([1], tf.int64), shape=[None], trainable=False
        )
        self._key = tf.Variable(tf.zeros([2], tf.int64), trainable=False)

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Draws numbers of the examples, in the block, and not of the generators."""
        numbers = ReplayedRandomNumbers()
        draws = TensorFlowDraws(numbers)
        with (
            numbers.replayed(self._examples),
            draws.keyed_in_steps(self._model, self._key),
        ):
            yield

    def begin(self, batch: Batch) -> None:
        """Sets the numbers of a step; features and labels of its batch are not read."""
        for state, value in keyed_states(self._states, self._seed, batch):
            state.assign(value)
        self._examples.assign(batch.indices)
        self._key.assign(step_key(self._seed, batch))
