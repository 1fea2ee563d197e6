"""Stateless random numbers: a function of seed, step and replica.

Keras layers that draw random numbers keep a counter and advance it with every call. All
replicas would then draw the same numbers, and a checkpoint without the counters
(tf.train.Checkpoint omits them) would resume with different numbers. For the duration
of one step, this module replaces each counter by a value computed from the run's seed,
the step and the replica.
"""

import keras
import tensorflow as tf

from strategies.common.types import Batch

# Name that keras.random.SeedGenerator gives its variable
# (keras/src/random/seed_generator.py); tests/test_tensorflow_facts.py checks it.
_SEED_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the counters of all random layers of a model, in a fixed order."""
    return [v for v in model.variables if is_seed_state(v)]


def is_seed_state(variable: keras.Variable) -> bool:
    """Returns whether a variable is the counter of random numbers."""
    return variable.name == _SEED_STATE


def keyed_states(
    states: list[keras.Variable], seed: int, batch: Batch, of_any_replica: bool = False
) -> list[tuple[keras.Variable, tf.Tensor]]:
    """Returns the value of each counter of `seed_states` for one replica's step.

    With `of_any_replica` every replica has the values of replica 0.

    Returns:
      Pairs of a counter and an int64 [2] seed for `keras.StatelessScope`. No other
        (seed, step, replica, layer) has the same seed.
    """
    if not states:
        return []
    key = step_key(seed, batch, of_any_replica)
    return [
        (state, tf.random.fold_in(key, tf.constant(index, tf.int64)))
        for index, state in enumerate(states)
    ]


def step_key(seed: int, batch: Batch, of_any_replica: bool = False) -> tf.Tensor:
    """Returns the key of one replica's step, int64 [2]; see `keyed_states`."""
    key = tf.constant([seed, 0], tf.int64)
    replica = tf.zeros([], tf.int64) if of_any_replica else batch.replica
    for value in (batch.step, replica):
        key = tf.random.fold_in(key, value)
    return key
