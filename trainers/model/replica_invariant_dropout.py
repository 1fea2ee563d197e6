"""Dropout with masks that do not depend on the replica.

A hash of the seed, the layer, the step, the example's index in the data set and the
number's position in the example's row decides whether a number is kept. A few
elementwise operations compute the mask for all rows; TensorFlow's stateless generators
would need one call for each row. All these operations support uint64 on CPUs, on GPUs
and in XLA, with equal results.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from strategies.common import hashing
from strategies.common.errors import UsageError
from strategies.common.private_apis import flat_layers
from strategies.common.types import Batch
from trainers.model.rng import seed_states

_SPATIAL = (
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
# Only these exact `call` methods: a subclass that overrides `call` may do anything.
_KNOWN_CALLS = {layer.call for layer in (keras.layers.Dropout, *_SPATIAL)}


class ReplayableDropout:
    """Replacement of all dropout layers of a model during a training step."""

    def __init__(self, model: keras.Model, seed: int):
        """Finds the dropout layers; changes nothing.

        Args:
          model: Model with dropout layers at any depth.
          seed: Seed of the run.

        Raises:
          UsageError: Another kind of layer draws random numbers.
        """
        _refuse_others(model)
        self._layers = _dropout_layers(model)
        self._seed = seed
        # Masks by thread: MirroredStrategy traces each replica in a thread and switches
        # between the threads inside a model that communicates.
        self._under_way: dict[int, _Masks] = {}

    @contextlib.contextmanager
    def replayed(self, batch: Batch) -> Iterator[None]:
        """Replaces the model's dropout for the examples of a batch within the context.

        A layer that is called several times draws a new mask each time.

        Args:
          batch: Rows of one replica.
        """
        thread = threading.get_ident()
        if not self._under_way:
            for index, layer in enumerate(self._layers):
                # Bypasses `Layer.__setattr__`, which would track the attribute.
                vars(layer)["call"] = functools.partial(self._call, layer, index)
        self._under_way[thread] = _Masks(self._seed, batch)
        try:
            yield
        finally:
            del self._under_way[thread]
            if not self._under_way:
                for layer in self._layers:
                    del vars(layer)["call"]

    def _call(
        self,
        layer: keras.layers.Dropout,
        index: int,
        inputs: tf.Tensor,
        training: bool = False,
    ) -> tf.Tensor:
        masks = self._under_way.get(threading.get_ident())
        # A thread outside a step, such as an evaluation, uses the layer's own method.
        if masks is None or not training:
            return type(layer).call(layer, inputs, training=training)
        # 1 / (1 - rate) would divide by zero.
        if layer.rate == 1:
            return tf.zeros_like(inputs)
        # tf.cast would round the factor to float32 first.
        scaled = inputs * tf.constant(1 / (1 - layer.rate), inputs.dtype)
        kept = masks.draw(layer, index, inputs)
        return tf.where(kept, scaled, tf.zeros([], inputs.dtype))


class _Masks:
    """Masks of one replica in one step."""

    def __init__(self, seed: int, batch: Batch):
        self._seed = seed
        self._batch = batch
        self._calls: Counter[int] = Counter()

    def draw(
        self, layer: keras.layers.Dropout, index: int, inputs: tf.Tensor
    ) -> tf.Tensor:
        """Returns the mask of a layer's next call, broadcastable to the inputs.

        Args:
          layer: Dropout layer.
          index: Position of the layer among the model's dropout layers.
          inputs: Inputs of the layer, [rows, ...].

        Returns:
          bool; True where a number is kept.
        """
        call = self._calls[index]
        self._calls[index] += 1
        key = key_of(self._seed, index, call, self._batch.step)
        noise_shape = _noise_shape(layer, inputs)
        if noise_shape[0] == 1:
            # One mask for all rows, which therefore cannot depend on an example.
            examples = tf.zeros([1], tf.int64)
        else:
            with tf.control_dependencies([_check_rows(layer, inputs, self._batch)]):
                examples = tf.identity(self._batch.indices)
        sizes = tf.shape(inputs, out_type=tf.int64)
        row_shape = [sizes[i] if n is None else n for i, n in enumerate(noise_shape)]
        return keep(layer.rate, key, examples, row_shape[1:])


def key_of(seed: int, layer: int, call: int, step: tf.Tensor) -> tf.Tensor:
    """Returns a uint64 key, almost surely unique for its arguments.

    Args:
      seed: Seed of the run.
      layer: Position of the dropout layer in the model.
      call: Number of earlier calls of the layer in this step.
      step: int64 scalar.
    """
    return hashing.key_of(seed, layer, call, step)


def keep(
    rate: float,
    key: tf.Tensor,
    examples: tf.Tensor,
    row_shape: Sequence[int | tf.Tensor],
) -> tf.Tensor:
    """Returns a dropout mask.

    Args:
      rate: Probability of dropping a number, less than 1.
      key: Key from `key_of`.
      examples: int64 [rows], indices in the data set.
      row_shape: Shape of the mask of one example.

    Returns:
      bool [rows, *row_shape]; True where a number is kept. Row i depends only on
        examples[i].
    """
    row_shape = [tf.cast(size, tf.int64) for size in row_shape]
    size = tf.reduce_prod(tf.stack([tf.ones([], tf.int64), *row_shape]))
    hashes = hashing.hashes_of_rows(key, examples, size)
    # The hashes are uniform on [0, 2^64), so a fraction `rate` of them is below rate *
    # 2^64.
    kept = hashes >= hashing.constant(round(rate * 2**64))
    return tf.reshape(kept, tf.stack([tf.size(examples, tf.int64), *row_shape]))


def _dropout_layers(model: keras.Model) -> list[keras.layers.Dropout]:
    return [
        layer
        for layer in flat_layers(model)
        if getattr(type(layer), "call", None) in _KNOWN_CALLS and layer.rate > 0
    ]


def _refuse_others(model: keras.Model) -> None:
    replaced = _dropout_layers(model)
    for layer in replaced:
        if (getattr(layer, "noise_shape", None) or [None])[0] not in (None, 1):
            raise UsageError(
                "--set=model.replayable_dropout=true does not fit layer "
                f"{layer.name!r}, whose "
                f"noise_shape={layer.noise_shape} fixes how many rows there are: begin "
                "it with None, or leave --set=model.replayable_dropout=true out."
            )
    # Every counter must belong to one of the replaced layers.
    known = {id(layer.seed_generator.state) for layer in replaced}
    for state in seed_states(model):
        if id(state) not in known:
            owner = _owner(model, state)
            raise UsageError(
                "--set=model.replayable_dropout=true knows Dropout and "
                "SpatialDropout, and not how "
                f"layer {owner.name!r} ({type(owner).__name__}) draws random numbers: "
                "leave the one or the other out."
            )


def _owner(model: keras.Model, state: keras.Variable) -> keras.layers.Layer:
    """Returns the innermost layer that owns a variable."""
    owners = [
        layer
        for layer in flat_layers(model)
        if any(variable is state for variable in layer.variables)
    ]
    return min(owners, key=lambda layer: len(list(flat_layers(layer))))


def _noise_shape(
    layer: keras.layers.Dropout, inputs: tf.Tensor
) -> Sequence[int | None]:
    """Returns the mask's shape: 1 for a broadcast axis, None for the inputs' length.

    Raises:
      UsageError: The layer's noise_shape and its inputs differ in rank.
    """
    rank = len(inputs.shape)
    if isinstance(layer, _SPATIAL):
        shared = (1,) * (rank - 2)
        if getattr(layer, "data_format", "channels_last") == "channels_first":
            return (None, None, *shared)
        return (None, *shared, None)
    noise_shape = layer.noise_shape or (None,) * rank
    if len(noise_shape) != rank:
        raise UsageError(
            f"--set=model.replayable_dropout=true does not fit layer {layer.name!r}: "
            "its noise_shape="
            f"{noise_shape} needs {rank} dimensions, as its inputs have."
        )
    return noise_shape


def _check_rows(
    layer: keras.layers.Dropout, inputs: tf.Tensor, batch: Batch
) -> tf.Operation:
    return tf.debugging.assert_equal(
        tf.shape(inputs, out_type=tf.int64)[0],
        tf.size(batch.indices, tf.int64),
        f"--set=model.replayable_dropout=true does not fit layer {layer.name!r}: its "
        "inputs must have "
        "a row for each example; do not fold other dimensions into the first.",
    )
