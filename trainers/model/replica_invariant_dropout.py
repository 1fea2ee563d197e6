"""Dropout whose mask for an example is the same on whichever replica it falls.

Whether a number is kept is a hash of the seed, the layer, the step, the example's
index in the data set and the number's position in the example's row. It is computed
for all rows in a few elementwise operations; the stateless generators of TensorFlow
would need one call for each row. All of them exist for uint64 on CPUs, on GPUs and in
XLA, with equal results.
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
# A subclass with a call of its own may do anything.
_KNOWN_CALLS = {layer.call for layer in (keras.layers.Dropout, *_SPATIAL)}


class ReplayableDropout:
    """Takes the place of all dropout layers of a model during a training step."""

    def __init__(self, model: keras.Model, seed: int):
        """Changes nothing yet.

        Args:
          model: its layers at any depth.
          seed: of the run.

        Raises:
          UsageError: a layer draws random numbers in another way.
        """
        _refuse_others(model)
        self._layers = _dropout_layers(model)
        self._seed = seed
        # By thread: MirroredStrategy traces each replica in its own, and goes from one
        # to the other in the middle of a model that communicates.
        self._under_way: dict[int, _Masks] = {}

    @contextlib.contextmanager
    def replayed(self, batch: Batch) -> Iterator[None]:
        """While this lasts, the model's dropout is for these examples.

        A layer that is called several times draws another mask each time.
        """
        thread = threading.get_ident()
        if not self._under_way:
            for index, layer in enumerate(self._layers):
                # Past `Layer.__setattr__`, which would track what is set.
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
        if masks is None or not training:
            return type(layer).call(layer, inputs, training=training)
        if layer.rate == 1:
            return tf.zeros_like(inputs)
        # tf.cast would round it to float32 first.
        scaled = inputs * tf.constant(1 / (1 - layer.rate), inputs.dtype)
        kept = masks.draw(layer, index, inputs)
        return tf.where(kept, scaled, tf.zeros([], inputs.dtype))


class _Masks:
    """Of one replica's step."""

    def __init__(self, seed: int, batch: Batch):
        self._seed = seed
        self._batch = batch
        self._calls: Counter[int] = Counter()

    def draw(
        self, layer: keras.layers.Dropout, index: int, inputs: tf.Tensor
    ) -> tf.Tensor:
        """Which numbers are kept, in a shape that broadcasts to that of the inputs."""
        call = self._calls[index]
        self._calls[index] += 1
        key = key_of(self._seed, index, call, self._batch.step)
        noise_shape = _noise_shape(layer, inputs)
        if noise_shape[0] == 1:
            examples = tf.zeros([1], tf.int64)
        else:
            with tf.control_dependencies([_check_rows(layer, inputs, self._batch)]):
                examples = tf.identity(self._batch.indices)
        sizes = tf.shape(inputs, out_type=tf.int64)
        row_shape = [sizes[i] if n is None else n for i, n in enumerate(noise_shape)]
        return keep(layer.rate, key, examples, row_shape[1:])


def key_of(seed: int, layer: int, call: int, step: tf.Tensor) -> tf.Tensor:
    """A uint64 that no other (seed, layer, call of the layer, step) is likely to have.

    Args:
      seed: of the run.
      layer: which dropout layer of the model.
      call: how often the layer was called before in this step.
      step: int64 scalar.
    """
    return hashing.key_of(seed, layer, call, step)


def keep(
    rate: float,
    key: tf.Tensor,
    examples: tf.Tensor,
    row_shape: Sequence[int | tf.Tensor],
) -> tf.Tensor:
    """Which numbers are kept.

    Args:
      rate: probability with which a number is dropped, less than 1.
      key: from `key_of`.
      examples: int64 [rows], indices in the data set.
      row_shape: of what is drawn for one example.

    Returns:
      bool [rows, *row_shape]. Row i depends on examples[i] alone.
    """
    row_shape = [tf.cast(size, tf.int64) for size in row_shape]
    size = tf.reduce_prod(tf.stack([tf.ones([], tf.int64), *row_shape]))
    hashes = hashing.hashes_of_rows(key, examples, size)
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
                f"--replayable_dropout does not fit layer {layer.name!r}, whose "
                f"noise_shape={layer.noise_shape} fixes how many rows there are: begin "
                "it with None, or leave --replayable_dropout out."
            )
    known = {id(layer.seed_generator.state) for layer in replaced}
    for state in seed_states(model):
        if id(state) not in known:
            owner = _owner(model, state)
            raise UsageError(
                f"--replayable_dropout knows Dropout and SpatialDropout, and not how "
                f"layer {owner.name!r} ({type(owner).__name__}) draws random numbers: "
                "leave the one or the other out."
            )


def _owner(model: keras.Model, state: keras.Variable) -> keras.layers.Layer:
    """The innermost layer that has a variable."""
    owners = [
        layer
        for layer in flat_layers(model)
        if any(variable is state for variable in layer.variables)
    ]
    return min(owners, key=lambda layer: len(list(flat_layers(layer))))


def _noise_shape(
    layer: keras.layers.Dropout, inputs: tf.Tensor
) -> Sequence[int | None]:
    """Of the mask: 1 where it is shared, None where it is as long as the inputs.

    Raises:
      UsageError: the layer's does not have the inputs' dimensions.
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
            f"--replayable_dropout does not fit layer {layer.name!r}: its noise_shape="
            f"{noise_shape} needs {rank} dimensions, as its inputs have."
        )
    return noise_shape


def _check_rows(
    layer: keras.layers.Dropout, inputs: tf.Tensor, batch: Batch
) -> tf.Operation:
    return tf.debugging.assert_equal(
        tf.shape(inputs, out_type=tf.int64)[0],
        tf.size(batch.indices, tf.int64),
        f"--replayable_dropout does not fit layer {layer.name!r}: its inputs must have "
        "a row for each example; do not fold other dimensions into the first.",
    )
