"""A warning about layers that mix the examples of a batch, or keep no mean of them.

Replicas' new values are averaged, weighted by the rows of their shards. That is the
value for the global batch if the change is the same for all examples or their mean, and
not if it is a sum or a count, such as of the codes of a vector quantizer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.objective import predictions_of
from strategies.common.private_apis.models import flat_layers, is_of_keras
from strategies.common.text import NUMBER_MATTERS
from strategies.common.tracing import origins
from strategies.common.types import Batch
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import is_seed_state, seed_states
from trainers.user_code import PerBatchError
from trainers.user_code.halves import (
    are_means,
    graph_of,
    number_of,
    on_halves,
    relative_rounding,
    twice,
)
from trainers.user_code.independence import agree


def forward_remark(model: keras.Model, few: Batch) -> str | None:
    """Returns a warning if replicas do not compute what a whole batch computes.

    Raises:
      PerBatchError: An output has no row of each example that is as in another batch.
    """
    variables = users_state(model)
    if not (variables or _has_own_code(model)):
        return None
    is_normalized = normalizes_batches(model)
    if is_normalized:
        # Halves with the same examples are normalized as the whole. A sum over examples
        # is still twice that of a half.
        few = twice(few)
    replayed = ReplayedRandomNumbers()
    results = on_halves(_forward(model, variables, replayed), few)
    changes, outputs, added = zip(*results, strict=True)
    _check_rows(outputs)
    rounding = relative_rounding(model)
    # In half precision rows of a batch are rounded otherwise in another batch.
    compares_rows = replayed.are_of_examples and not (is_normalized or rounding)
    if compares_rows and _are_mixed(outputs):
        return (
            "the model predicts other values for a batch than for its halves (perhaps "
            "it adds up or compares the examples, as ops.tensordot over two axes "
            f"does): replicas predict for their shards, {NUMBER_MATTERS}"
        )
    parted, again = np.array(added[:-1]), added[-1]
    error = rounding * np.abs(parted).max(axis=0)
    if agree(parted[0], again, error) and not are_means(parted, error):
        return (
            "a loss that the model adds (add_loss) is no mean over the examples of a "
            "batch (perhaps a sum, or a value of each, which Keras sums): each replica "
            "adds that of its shard in proportion to its rows, "
            f"{NUMBER_MATTERS}; add a mean"
        )
    return remark_on(variables, np.array(changes[:-1]), rounding)


def _forward(
    model: keras.Model,
    variables: Sequence[keras.Variable],
    replayed: ReplayedRandomNumbers,
) -> Callable[[Batch], tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]]:
    """Returns a function that calls a model in training, and changes nothing.

    It returns a number for the change of each variable, outputs, and added losses. An
    example has the same random numbers in a half as among all.
    """
    numbers = StepRandomNumbers(0, replayed)

    def run(batch: Batch) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        keyed = numbers.keyed(seed_states(model), batch)
        scoped = keras.StatelessScope(keyed, collect_losses=True)
        with scoped as scope, numbers.drawn(batch):
            outputs = predictions_of(model, batch.features, training=True)
        # A layer may add a loss of each example, which Keras sums.
        added = [tf.reduce_sum(tf.cast(loss, tf.float64)) for loss in scope.losses]
        return changes_in(scope, variables), tf.nest.flatten(outputs), added

    return graph_of(run)


def _has_own_code(model: keras.Model) -> bool:
    """Returns whether code of the user's own may compare the examples of a batch."""
    layers = flat_layers(model)
    operations = [part for x in layers for part in getattr(x, "operations", [])]
    return any(
        isinstance(part, keras.layers.Lambda)
        or not isinstance(part, keras.layers.Layer)
        or not is_of_keras(part)
        for part in [*layers, *operations]
    )


def _check_rows(outputs: Sequence[Sequence[tf.Tensor]]) -> None:
    """Checks the shapes of outputs; see `_are_mixed`."""
    for whole, *halves, _ in zip(*outputs, strict=True):
        # A scalar has none.
        num_rows, *of_halves = (sum(one.shape[:1]) for one in (whole, *halves))
        kinds = {tuple(one.shape[1:]) for one in (whole, *halves)}
        if not num_rows or num_rows != sum(of_halves) or len(kinds) > 1:
            raise PerBatchError(
                f"an output of the model is {list(whole.shape)} for a batch and "
                f"{list(halves[0].shape)} for its half, not a row of one length for "
                "each example: replicas compute it of their shards, so that their "
                "number may matter"
            )


def _are_mixed(outputs: Sequence[Sequence[tf.Tensor]]) -> bool:
    """Returns whether outputs for all examples are not those for their halves.

    Args:
      outputs: Outputs for all examples, for each half, and for all again.
    """
    for whole, *halves, again in zip(*outputs, strict=True):
        if agree(whole, again) and not agree(whole, np.concatenate(halves)):
            return True
    return False


def users_state(model: keras.Model) -> list[keras.Variable]:
    """Returns the state of layers of the user's own, without that of layers in them."""
    users = [layer for layer in flat_layers(model) if not is_of_keras(layer)]
    return [variable for layer in users for variable in _state_of(layer)]


def normalizes_batches(model: keras.Model) -> bool:
    """Returns whether a layer of a model normalizes over the examples of a batch."""
    return bool(normalizations(model))


def normalizations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the layers of a model that may normalize over the examples of a batch."""
    layers = flat_layers(model)
    return [x for x in layers if isinstance(x, keras.layers.BatchNormalization)]


def normalizes_examples(model: keras.Model, few: Batch) -> bool:
    """Returns whether a layer of a model normalizes over the examples of a batch."""
    if not _has_own_code(model):
        return normalizes_batches(model)
    found = []

    def trace(batch: Batch) -> None:
        with keras.StatelessScope() as scope:
            predictions_of(model, batch.features, training=True)
        found.append(has_normalized(model, scope, batch.features))

    try:
        tf.function(trace, autograph=False).get_concrete_function(few)
    # A model of a fixed number of rows may take no others. Any other error appears
    # again.
    except Exception:
        return True
    return found[0]


def has_normalized(
    model: keras.Model, scope: keras.StatelessScope, features: Any
) -> bool:
    """Returns whether a layer has normalized over features, in a graph.

    It may have normalized over what all batches share instead, such as the nodes of a
    graph.

    Args:
      model: The model.
      scope: Scope in which it was called.
      features: Features that it was called with.
    """
    names = ("moving_mean", "moving_variance")
    moments = [getattr(x, name, None) for x in normalizations(model) for name in names]
    written = [scope.get_current_value(one) for one in moments if one is not None]
    given = tf.nest.flatten(features, expand_composites=True)
    of_examples = {tensor.name for tensor in given}
    symbolic = filter(tf.is_symbolic_tensor, written)
    return any(tensor.name in of_examples for tensor in origins(symbolic))


def _state_of(layer: keras.layers.Layer) -> list[keras.Variable]:
    inner = [x for x in flat_layers(layer) if x is not layer]
    others = {id(v) for each in inner for v in each.non_trainable_variables}
    return [
        variable
        for variable in layer.non_trainable_variables
        if not (id(variable) in others or is_seed_state(variable))
        and variable.dtype != "string"
    ]


def changes_in(
    scope: keras.StatelessScope, variables: Sequence[keras.Variable]
) -> list[tf.Tensor]:
    """Returns a number for the change of each variable in a scope, float64."""
    changes = []
    for variable in variables:
        # A difference of bools, or of numbers without a sign, is none.
        old = tf.cast(tf.convert_to_tensor(variable), tf.float64)
        new = scope.get_current_value(variable)
        # The scope has no value of a variable that nothing assigns.
        change = tf.zeros_like(old) if new is None else tf.cast(new, tf.float64) - old
        changes.append(number_of(change))
    return changes


def remark_on(
    variables: Sequence[keras.Variable], changes: np.ndarray, rounding: float
) -> str | None:
    """Returns a warning if a variable does not change by a mean over examples.

    Args:
      variables: State of layers.
      changes: Changes by all examples and by each half, float64 [3, variables].
      rounding: Relative error of changes in half precision; 0 without it.
    """
    names = [
        variable.path
        for variable, parts in zip(variables, changes.T, strict=True)
        if not are_means(parts, rounding * np.abs(parts).max())
    ]
    if not names:
        return None
    return (
        f"the state {', '.join(names)} changes by no mean over the examples of a batch "
        f"(perhaps by a sum or a count): replicas average it, or take the first one's "
        f"integers, {NUMBER_MATTERS}; keep a mean"
    )
