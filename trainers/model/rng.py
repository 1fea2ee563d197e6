"""Random numbers as a function of (seed, step, replica), without any state.

Keras layers that draw random numbers keep a counter and advance it with every
call. Replicas would then draw the same numbers, and a checkpoint that leaves the
counters out (tf.train.Checkpoint does) would resume with others. Here each
counter is replaced, for the duration of one step, by a value computed from the
run's seed, the step and the replica.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from strategies.common.types import Batch

# The name keras.random.SeedGenerator gives its variable
# (keras/src/random/seed_generator.py); tests/test_tensorflow_facts.py checks it.
_SEED_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The counters of all random layers of a model, in a fixed order."""
    return [v for v in model.variables if v.name == _SEED_STATE]


def keyed_states(
    states: list[keras.Variable], seed: int, batch: Batch
) -> list[tuple[keras.Variable, tf.Tensor]]:
    """What each counter is for one replica's step, for `keras.StatelessScope`.

    Args:
      states: from `seed_states`.
      seed: the run's seed.
      batch: tells the step and the replica.

    Returns:
      Pairs of a counter and an int64 [2] seed that no other (seed, step, replica,
      layer) shares.
    """
    if not states:
        return []
    key = tf.constant([seed, 0], tf.int64)
    for value in (batch.step, batch.replica):
        key = tf.random.fold_in(key, value)
    return [
        (state, tf.random.fold_in(key, tf.constant(index, tf.int64)))
        for index, state in enumerate(states)
    ]
