"""Private names that an optimizer needs to update weights, or parts of them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


def adagrad_accumulator(
    optimizer: keras.optimizers.Adagrad, variable: tf.Variable
) -> keras.Variable:
    """Returns the sum of squared gradients that Adagrad keeps for a variable.

    Keras's own `update_step` finds the sum like this, and no public name leads there
    (keras/src/optimizers/adagrad.py).
    """
    return optimizer._accumulators[optimizer._get_variable_index(variable)]


def adam_moments(
    optimizer: keras.optimizers.Adam, variable: tf.Variable
) -> tuple[keras.Variable, keras.Variable]:
    """Returns Adam's means of the gradients of a variable and of their squares.

    Keras's own `update_step` finds them like this, and no public name leads there
    (keras/src/optimizers/adam.py).
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def state_by_weight(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]
) -> list[list[keras.Variable]]:
    """Returns the lists of variables that an optimizer keeps, one for each weight."""
    # Such as momenta, and squares of gradients. They are attributes without public
    # names (keras/src/optimizers/adam.py, `_momentums` and `_velocities`). Scalars,
    # such as the number of updates and the learning rate, are not among them.
    known = {id(variable) for variable in optimizer.variables}
    shapes = [tuple(weight.shape) for weight in weights]
    return [
        list(kept)
        for name, kept in vars(optimizer).items()
        if isinstance(kept, list)
        and name != "_variables"
        and all(id(variable) in known for variable in kept)
        and [tuple(variable.shape) for variable in kept] == shapes
    ]


def slice_like(variable: keras.Variable, size: int) -> keras.Variable:
    """Returns a vector that has the type and the names of another variable."""
    # Weight decay is excluded by the name of the `tf.Variable` (keras/src/optimizers/
    # base_optimizer.py, `_use_weight_decay`), which may have a scope in front.
    part = keras.Variable(
        tf.zeros([size], variable.dtype), dtype=variable.dtype, name=variable.name
    )
    full_name = variable.value.name.partition(":")[0]
    part._value = tf.Variable(part.value, name=full_name)
    return part


def update_without_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Updates moving averages and numbers that do not depend on gradients.

    `Optimizer.apply` refuses an update in which no weight has a gradient (keras/src/
    optimizers/base_optimizer.py, `_filter_empty_gradients`).
    """
    optimizer._backend_apply_gradients([], [])
    optimizer.iterations.assign_add(1)


@contextlib.contextmanager
def updates_slices(
    optimizer: keras.optimizers.Optimizer,
    weights: Sequence[tuple[keras.Variable, keras.Variable]],
    state: Sequence[tuple[keras.Variable, tf.Variable]],
) -> Iterator[None]:
    """Makes an optimizer update slices of weights, by slices of its state, in a block.

    Args:
      optimizer: Built optimizer.
      weights: Each trainable variable in order, and its slice.
      state: Variables of the optimizer, and their slices.
    """
    # An optimizer finds the state of a weight by the identity of its `tf.Variable`, and
    # updates by the strategy of its creation (keras/src/backend/tensorflow/
    # optimizer.py, `_var_key` and `_distribution_strategy`). A slice belongs to none.
    attributes, slice_of = vars(optimizer), dict[Any, Any]()
    for weight, part in weights:
        slice_of[optimizer._var_key(weight)] = optimizer._var_key(part)
    excluded = attributes.get("_exclude_from_weight_decay", set())
    instead = {
        "_distribution_strategy": tf.distribute.get_strategy(),
        "_trainable_variables": [part for _, part in weights],
        "_trainable_variables_indices": {
            slice_of[key]: index
            for key, index in optimizer._trainable_variables_indices.items()
        },
        "_exclude_from_weight_decay": {slice_of.get(key, key) for key in excluded},
        "_exclude_from_weight_decay_cache": {},
    }
    former = {name: attributes[name] for name in instead if name in attributes}
    whole = [(variable, variable._value, variable._shape) for variable, _ in state]
    # Not by `setattr`, which would track the slices as parts of the checkpoint.
    attributes.update(instead)
    for variable, part in state:
        variable._value, variable._shape = part, tuple(part.shape)
    try:
        yield
    finally:
        for name in instead:
            attributes.pop(name)
        attributes.update(former)
        for variable, value, shape in whole:
            variable._value, variable._shape = value, shape
