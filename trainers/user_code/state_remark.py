"""A warning about layers whose state replicas cannot average.

Replicas' new values are averaged, weighted by the rows of their shards. That is the
value for the global batch if the change is the same for all examples or their mean, and
not if it is a sum or a count, such as of the codes of a vector quantizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from strategies.common.private_apis.models import flat_layers
from strategies.common.types import Batch
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.user_code.halves import are_means, number_of, parts_of_batch


def state_remark(model: keras.Model, few: Batch) -> str | None:
    """Returns a warning if a layer of the user's own keeps no mean over a batch.

    Args:
      model: Model, whose variables belong to this process.
      few: A few examples.
    """
    variables = users_state(model)
    if not variables:
        return None
    # An example has the same random numbers in a half as among all.
    numbers = StepRandomNumbers(0, ReplayedRandomNumbers())

    def run(batch: Batch) -> list[tf.Tensor]:
        keyed = numbers.keyed(seed_states(model), batch)
        with keras.StatelessScope(keyed) as scope, numbers.drawn(batch):
            model(batch.features, training=True)
        return changes_in(scope, variables)

    traced = tf.function(run, autograph=False)
    changes = np.array([traced(part) for part in parts_of_batch(few)])
    return remark_on(variables, changes)


def users_state(model: keras.Model) -> list[keras.Variable]:
    """Returns the state of layers of the user's own, without that of layers in them."""
    # A normalization of halves changes what comes after it.
    if normalizes_batches(model):
        return []
    users = [
        x for x in flat_layers(model) if not type(x).__module__.startswith("keras.")
    ]
    return [variable for layer in users for variable in _state_of(layer)]


def normalizes_batches(model: keras.Model) -> bool:
    """Returns whether a layer of a model normalizes over the examples of a batch."""
    layers = flat_layers(model)
    return any(isinstance(x, keras.layers.BatchNormalization) for x in layers)


def _state_of(layer: keras.layers.Layer) -> list[keras.Variable]:
    inner = [x for x in flat_layers(layer) if x is not layer]
    others = {id(v) for each in inner for v in each.non_trainable_variables}
    return [
        variable
        for variable in layer.non_trainable_variables
        if id(variable) not in others and "float" in variable.dtype
    ]


def changes_in(
    scope: keras.StatelessScope, variables: Sequence[keras.Variable]
) -> list[tf.Tensor]:
    """Returns a number for the change of each variable in a scope, float64."""
    changes = []
    for variable in variables:
        old = tf.convert_to_tensor(variable)
        new = scope.get_current_value(variable)
        # The scope has no value of a variable that nothing assigns.
        change = tf.zeros_like(old) if new is None else new - old
        changes.append(number_of(tf.cast(change, tf.float64)))
    return changes


def remark_on(variables: Sequence[keras.Variable], changes: np.ndarray) -> str | None:
    """Returns a warning if a variable does not change by a mean over examples.

    Args:
      variables: State of layers.
      changes: Changes by all examples and by each half, float64 [3, variables].
    """
    names = [
        variable.path
        for index, variable in enumerate(variables)
        if not are_means(changes[:, index])
    ]
    if not names:
        return None
    return (
        f"the state {', '.join(names)} changes by no mean over the examples of a batch "
        "(perhaps by a sum or a count): replicas average it, so that their number "
        "matters; keep a mean"
    )
