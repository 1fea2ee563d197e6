"""Private names of models, layers and callbacks."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.tensorflow import nn

from strategies.common.private_apis.replaced import replaced


def flat_layers(model: keras.Model) -> Sequence[keras.layers.Layer]:
    """Returns all layers of a model at any depth, with the model itself.

    `Model.layers` lists one level, and omits layers that a user's layer keeps in its
    attributes (keras/src/layers/layer.py, `_flatten_layers`).
    """
    return model._flatten_layers()


def is_of_keras(part: Any) -> bool:
    """Returns whether the class of a layer, operation or metric is Keras's."""
    return type(part).__module__.startswith("keras.")


@contextlib.contextmanager
def trained_as_traced(model: keras.Model) -> Iterator[None]:
    """Gives layers, in the block, the `trainable` that the first `fit` traced.

    Keras traces its step at the first `fit` since `compile`, and what a program freezes
    or thaws later has no effect before it compiles again (keras/src/backend/tensorflow/
    trainer.py, `make_train_function`).
    """
    now = [(layer, layer.trainable) for layer in flat_layers(model)]
    first = vars(compiled_state(model)).setdefault("first_trained", now)
    changed = [(layer, flag) for layer, flag in first if layer.trainable != flag]
    set_trainable(changed)
    try:
        yield
    finally:
        set_trainable((layer, not flag) for layer, flag in changed)


# Flags of the layers of a model, and flags of its weights.
TrainableFlags = tuple[Sequence[bool], Sequence[bool]]
# The same with the layer, or the weight, of each.
TrainableParts = tuple[
    Sequence[tuple[keras.layers.Layer, bool]], Sequence[tuple[keras.Variable, bool]]
]


def trainable_parts(model: keras.Model) -> TrainableParts:
    """Returns the layers and weights of a model, each with its `trainable`."""
    return (
        [(layer, layer.trainable) for layer in flat_layers(model)],
        [(weight, weight.trainable) for weight in model.weights],
    )


def trainable_flags(model: keras.Model) -> TrainableFlags:
    """Returns each `trainable`, which files do not have of layers that a class makes.

    A model saves the configuration of its class alone (keras/src/models/model.py).
    """
    layers, weights = trainable_parts(model)
    return [flag for _, flag in layers], [flag for _, flag in weights]


def set_trainable_flags(model: keras.Model, flags: TrainableFlags) -> None:
    """Gives the layers and weights of a model the flags of an equal model."""
    of_layers, of_weights = flags
    layers = list(zip(flat_layers(model), of_layers, strict=True))
    _set_trainable_parts((layers, list(zip(model.weights, of_weights, strict=True))))


@contextlib.contextmanager
def trainable_as(model: keras.Model, parts: TrainableParts) -> Iterator[None]:
    """Gives layers and weights of a model some flags inside the block.

    A layer that is made meanwhile, as by the first call of `test_step`, has its own.
    """
    # Threads of replicas take turns in the block where a layer sums over replicas: the
    # first one has seen what is outside.
    key = "_parts_outside"
    is_first = key not in vars(model)
    outside = vars(model).setdefault(key, trainable_parts(model))
    _set_trainable_parts(parts)
    try:
        yield
    finally:
        _set_trainable_parts(outside)
        if is_first:
            del vars(model)[key]


def _set_trainable_parts(parts: TrainableParts) -> None:
    layers, weights = parts
    set_trainable(layers)
    for weight, flag in weights:
        weight.trainable = flag


def made_to_be_trained(model: keras.Model) -> list[keras.Variable]:
    """Returns all weights that were made trainable; some may be frozen now.

    `trainable_weights` has none of a frozen layer (keras/src/layers/layer.py).
    """
    return [v for layer in flat_layers(model) for v in layer._trainable_variables]


def compiled_state(model: keras.Model) -> Any:
    """Returns an object of a compiled model, which `compile` makes anew.

    None of a model that is not compiled (keras/src/trainers/trainer.py, `compile`).
    """
    return getattr(model, "_compile_config", None)


def set_trainable(flags: Iterable[tuple[keras.layers.Layer, bool]]) -> None:
    """Sets `trainable` of layers and of their own weights."""
    for layer, flag in flags:
        # The setter of `trainable` would change the layers inside of it as well.
        layer._trainable = flag
        for variable in layer._trainable_variables:
            variable.trainable = flag


@contextlib.contextmanager
def takes_weights(model: keras.Model) -> Iterator[None]:
    """Makes `add_weight` work inside the block for a model that has been built.

    A model class of the user refuses new weights once it is built, and there is no
    public way back. Functional and sequential models never refuse them
    (keras/src/layers/layer.py, `_lock_state`).
    """
    was_locked = model._tracker.locked
    model._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            model._lock_state()


@contextlib.contextmanager
def synchronized_moments_of(
    rows: Callable[[tf.Tensor], tf.Tensor], result: Callable[[tf.Tensor], tf.Tensor]
) -> Iterator[None]:
    """Chooses the rows of each replica that `synchronized=True` sums, inside the block.

    Keras sums and counts all rows of its input (keras/src/backend/tensorflow/nn.py,
    `_compute_moments_sync`), and takes no weights. With a mask it sums one replica's
    rows alone (keras/src/layers/normalization/batch_normalization.py, `_moments`):
    here all replicas' are summed then, too.

    Args:
      rows: Function from a layer's input or its mask to the rows that count.
      result: Function of the mean and of the variance, for their gradients.
    """

    def replacement(name: str, original: Any) -> Any:
        return lambda x, *arguments: tuple(map(result, original(rows(x), *arguments)))

    def masked(name: str, original: Any) -> Any:
        def moments(layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> Any:
            if mask is None or not layer.synchronized:
                return original(layer, inputs, mask)
            found = _masked_moments(rows(inputs), rows(mask), layer._reduction_axes)
            return tuple(map(result, found))

        return moments

    with (
        replaced(nn, ["_compute_moments_sync"], replacement),
        replaced(keras.layers.BatchNormalization, ["_moments"], masked),
    ):
        yield


def _masked_moments(
    inputs: tf.Tensor, mask: tf.Tensor, axes: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean and variance of what a mask leaves, over all replicas."""
    counted = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

    def total(values: tf.Tensor) -> tf.Tensor:
        summed = tf.reduce_sum(tf.where(counted, values, 0), axes, keepdims=True)
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, summed)

    # As Keras divides.
    count = total(tf.ones_like(inputs)) + keras.config.epsilon()
    mean = total(inputs) / count
    variance = total(tf.square(inputs - mean)) / count
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


@functools.cache
def scale_penalties_in_scopes() -> None:
    """Makes `Model.losses` smaller in a scope that has a `penalty_scale`, for good."""
    usual = keras.layers.Layer.losses.fget

    def losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
        scale = getattr(get_stateless_scope(), "penalty_scale", None)
        if scale is None:
            return usual(layer)
        return [loss * tf.cast(scale, loss.dtype) for loss in usual(layer)]

    keras.layers.Layer.losses = property(losses)


class Call(NamedTuple):
    """One call of a layer in a model made of connected layers.

    Attributes:
      layer: Called layer, or an operation of `keras.ops`.
      inputs: Symbolic tensors.
      outputs: Symbolic tensors.
      is_masked: True if a mask accompanies an output.
    """

    layer: Any
    inputs: Sequence[keras.KerasTensor]
    outputs: Sequence[keras.KerasTensor]
    is_masked: bool


def calls_of(model: keras.Function) -> Sequence[Call]:
    """Returns all calls of layers, each after the calls whose outputs it takes.

    `Function.operations` lists a layer once even if the model calls it several times,
    and does not contain the inputs of a call (keras/src/ops/function.py,
    `_run_through_graph`).
    """
    # Depths count from the outputs, so that the inputs have the largest depth.
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    return [
        Call(
            layer=node.operation,
            inputs=node.input_tensors,
            outputs=node.outputs,
            # Masks are attributes of tensors (keras/src/backend/common/masking.py).
            is_masked=any(hasattr(t, "_keras_mask") for t in node.outputs),
        )
        for node in nodes
        if not node.is_input
    ]


def flat_inputs(model: keras.Model, features: Any) -> Sequence[Any]:
    """Returns features in the order of a model's inputs, as a call of it takes them.

    Keras gives a dictionary to a list of inputs by name, converts types and adds a last
    axis (keras/src/models/functional.py, `_standardize_inputs`). A Sequential model
    keeps its functional equivalent (keras/src/models/sequential.py, `_functional`).
    """
    return getattr(model, "_functional", model)._standardize_inputs(features)


def packed_output(model: keras.Model, output: Any) -> Any:
    """Returns the only output of a model in the structure that a call of it returns.

    A structure of symbolic tensors is there as long as no call has been made
    (keras/src/ops/function.py, `_outputs_struct`).
    """
    structure = getattr(model, "_functional", model)._outputs_struct
    return keras.tree.map_structure(lambda _: output, structure)


def build_metrics(model: keras.Model, labels: Any, predictions: Any) -> None:
    """Makes the metrics that a model is compiled with, as `fit` does at its first step.

    Callbacks read from these metrics whether a monitored value is to grow or shrink.
    `fit` builds them by computing a step (keras/src/trainers/trainer.py,
    `_symbolic_build`), and `Model.metrics` has none of them before.
    """
    metrics = model._compile_metrics
    if metrics is not None and not metrics.built:
        metrics.build(labels, predictions)


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a layer's output; None if all parts of the output count.

    `keras.layers.Layer.compute_mask` would need the layer (keras/src/backend/common/
    masking.py, `get_keras_mask`).
    """
    return getattr(tensor, "_keras_mask", None)


def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback is a TensorBoard with `profile_batch`.

    It keeps the range of batches under private names alone (keras/src/callbacks/
    tensorboard.py, `_init_profile_batch`).
    """
    is_board = isinstance(callback, keras.callbacks.TensorBoard)
    return is_board and callback._should_trace


# Numbers of the epoch and of batches that ModelCheckpoint, OrbaxCheckpoint and
# TensorBoard count (keras/src/callbacks). Their other private numbers are arguments and
# times of a process.
COUNTERS_OF_CALLBACKS = frozenset(
    [
        *("_current_epoch", "_last_batch_seen", "_batches_seen_since_last_saving"),
        *("_total_batches_seen", "_global_train_batch", "_global_test_batch"),
    ]
)


def restart_clocks(board: keras.callbacks.TensorBoard) -> None:
    """Lets a TensorBoard measure speeds from now on, within an epoch and a batch.

    It notes the time and the updates before (keras/src/callbacks/tensorboard.py,
    `on_epoch_begin`, which does nothing else).
    """
    keras.callbacks.TensorBoard.on_epoch_begin(board, 0)
    board._batch_start_time = time.time()
