"""All random numbers of a step, of a replica or in Keras's own `fit`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from strategies.common.types import Batch
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import keyed_states, seed_states, step_key
from trainers.model.random_numbers.tensorflow_draws import TensorFlowDraws


class StepRandomNumbers:
    """Random numbers of layers, of `keras.random` and of TensorFlow in a step.

    Attributes:
      num_draws: Number of operations of TensorFlow that have drawn when the block of
        `drawn` ends, in the stages before as well.
    """

    def __init__(
        self,
        seed: int,
        replayed: ReplayedRandomNumbers | None,
        before: StepRandomNumbers | None = None,
    ):
        """Replaces nothing yet.

        Args:
          seed: Seed of the run.
          replayed: Random numbers of examples; None for numbers of replicas.
          before: Numbers of the stage before, which is traced earlier; None without.
        """
        self.num_draws = 0
        self._seed = seed
        self._replayed = replayed
        self._before = before
        self._draws = TensorFlowDraws(replayed)

    def keyed(
        self, states: list[keras.Variable], batch: Batch
    ) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the values of counters of layers; see `keyed_states`."""
        return keyed_states(states, self._seed, batch, self._replayed is not None)

    @contextlib.contextmanager
    def drawn(self, batch: Batch) -> Iterator[None]:
        """Draws the numbers of a replica's step in the block, in this thread."""
        key = step_key(self._seed, batch, self._replayed is not None)
        # So that a layer draws the same numbers wherever a model is cut into stages.
        num_before = 0 if self._before is None else self._before.num_draws
        with contextlib.ExitStack() as block:
            if self._replayed is not None:
                block.enter_context(self._replayed.replayed(batch.indices))
            step = block.enter_context(self._draws.keyed(key, num_before))
            yield
            self.num_draws = step.num_draws


class RandomNumbersOfFit:
    """Random numbers of replica 0 of other runs, in the steps of Keras's own `fit`."""

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
