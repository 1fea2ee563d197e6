"""The interface of methods that compress gradients."""

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from strategies.common.private_apis.collectives import gather_by_key
from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.reduction import bytes_of


class Reduced(NamedTuple):
    """Result of a compressed sum.

    Attributes:
      others: Sum of the outputs that are not compressed.
      sums: Approximate sum over replicas of each value, equal on every replica.
      errors: Rest of each value: this replica's value less its part of the sum.
      state: New state of the method for each value.
    """

    others: ReplicaOutputs
    sums: Sequence[tf.Tensor]
    errors: Sequence[tf.Tensor]
    state: Sequence[Sequence[tf.Tensor]]


class Encoded(NamedTuple):
    """One gradient as a worker sends it to the server that has the weight.

    Attributes:
      parts: Tensors to send.
      error: Rest of the value: the value less what `Method.decode` makes of the parts.
      state: New state of the method.
    """

    parts: Sequence[tf.Tensor]
    error: tf.Tensor
    state: Sequence[tf.Tensor]


class Method(abc.ABC):
    """Way to send an approximation of gradients.

    Between replicas, `reduce` sums in collectives. To a server, each worker sends what
    `encode` returns, and the server adds up what `decode` returns. In both, the sum
    plus the errors of all replicas equals the sum of the values. Nothing is lost; it is
    sent later.

    Attributes:
      name: Name of the method with its parameter.
      collectives: Name of the collectives of `reduce`.
    """

    name: str
    collectives: str

    @abc.abstractmethod
    def compresses(self, spec: tf.TensorSpec) -> bool:
        """Returns whether a gradient of this shape and type is compressed."""

    def remedy(self, specs: Sequence[tf.TensorSpec]) -> str:
        """Returns the change to make if no gradient of these is compressed."""
        del specs
        return "leave it out"

    def initial_state(self, spec: tf.TensorSpec, seed: int) -> Sequence[tf.Tensor]:
        """Returns a gradient's state, equal on all replicas; `seed` is its number."""
        del spec, seed
        return ()

    def initial_feedback(
        self, specs: Mapping[int, tf.TensorSpec]
    ) -> list[list[tf.Tensor]]:
        """Returns an error of zero and the first state of each gradient, in order."""
        return [
            [tf.zeros(s.shape, s.dtype), *self.initial_state(s, seed=index)]
            for index, s in specs.items()
        ]

    @abc.abstractmethod
    def bytes_sent(self, specs: Sequence[tf.TensorSpec], num_replicas: int) -> float:
        """Returns the bytes that a replica sends for one sum of gradients."""

    @abc.abstractmethod
    def reduce(
        self,
        context: tf.distribute.ReplicaContext,
        values: Sequence[tf.Tensor],
        state: Sequence[Sequence[tf.Tensor]],
        others: ReplicaOutputs,
    ) -> Reduced:
        """Sums values approximately over replicas, and other outputs as they are.

        Args:
          context: Context of this replica.
          values: Gradients of this replica, each with what was left of earlier ones.
          state: State of the method for each value.
          others: Outputs that are not compressed.
        """

    @abc.abstractmethod
    def encode(self, value: tf.Tensor, state: Sequence[tf.Tensor]) -> Encoded:
        """Returns one gradient, with what was left of earlier ones, as it is sent."""

    @abc.abstractmethod
    def decode(self, parts: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        """Returns the gradient that the parts of `encode` stand for."""

    def encoded_bytes(self, spec: tf.TensorSpec) -> int:
        """Returns the bytes of the parts of a gradient."""
        with tf.Graph().as_default():
            value = tf.zeros(spec.shape, spec.dtype)
            parts = self.encode(value, self.initial_state(spec, seed=0)).parts
        return bytes_of(parts)


def wide_type(dtype: tf.DType) -> tf.DType:
    """Returns the type to compute in: at least single precision."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def gather_vectors(
    context: tf.distribute.ReplicaContext, words: tf.Tensor
) -> tf.Tensor:
    """Returns the int32 vectors of all replicas, [replicas, length]."""
    gathered = gather_by_key(context, words)
    return tf.reshape(gathered, [context.num_replicas_in_sync, words.shape[0]])
