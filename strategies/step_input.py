"""How the steps of a call come by their batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf


class StepInput(Protocol):
    """From what a loop is called with to the batch of each step.

    What a loop is called with is a strategy's own, as are its batches.
    """

    def arguments(self, batches: Any) -> Any:
        """What is handed to the traced loop: iterators and tensors."""

    def signature(self, batches: Any) -> Any:
        """The arguments' specification; None for what they are at the first call."""

    def begin(self, arguments: Any) -> tuple[Any, Any]:
        """Before the first step of a call, as graph operations.

        Returns:
          What `take` reads from, and what the first step is handed.
        """

    def take(self, source: Any, held: Any, index: tf.Tensor) -> tuple[Any, Any]:
        """Within a step, as graph operations.

        Args:
          source: from `begin`.
          held: what the step before left.
          index: int32 scalar, how many steps of this call came before.

        Returns:
          The batch, and what is left for the next step.
        """

    def keep(self, batches: Any, held: Any) -> None:
        """Takes what the last step of a call left."""


@dataclasses.dataclass(frozen=True, slots=True)
class ByIndex:
    """Input that is computed for each step. Satisfies `StepInput`.

    Attributes:
      batch_at: from what is read from, and how many steps of this call came before.
      open: from what the loop is called with to what is read from, once a call.
    """

    batch_at: Callable[[Any, tf.Tensor], Any]
    open: Callable[[Any], Any] = lambda arguments: arguments

    def arguments(self, batches: Any) -> Any:
        return batches

    def signature(self, batches: Any) -> None:
        return None

    def begin(self, arguments: Any) -> tuple[Any, Any]:
        return self.open(arguments), ()

    def take(self, source: Any, held: Any, index: tf.Tensor) -> tuple[Any, Any]:
        return self.batch_at(source, index), held

    def keep(self, batches: Any, held: Any) -> None:
        return None


class Spans:
    """Batches that come out of a tf.data pipeline, those of several steps at a time.

    To take an element out of a pipeline means to wait for another thread, whatever is
    in it: TensorFlow runs `IteratorGetNext` in one of its own (tensorflow/core/kernels/
    data/iterator_ops.h, `HybridAsyncOpKernel`). That was a third of a step of a 5-10-2
    network (docs/performance.md). A call of the loop may end in the middle of a span;
    what is left is kept here for the next.
    """

    def __init__(self, dataset: tf.data.Dataset):
        """Starts the pipeline.

        Args:
          dataset: of structures of tensors [steps, ...].
        """
        self.iterator = iter(dataset)
        self.spec = dataset.element_spec
        # As if the last step of a span had just been taken.
        self.held = (_no_steps(self.spec), tf.constant(0))


class FromSpans:
    """Input of loops that are called with `Spans`. Satisfies `StepInput`."""

    def arguments(self, batches: Spans) -> Any:
        return batches.iterator, batches.held

    def signature(self, batches: Spans) -> Any:
        position = tf.TensorSpec([], tf.int32)
        return tf.data.IteratorSpec(batches.spec), (batches.spec, position)

    def begin(self, arguments: Any) -> tuple[Any, Any]:
        return arguments

    def take(self, source: Any, held: Any, index: tf.Tensor) -> tuple[Any, Any]:
        span, position = held
        is_used_up = position >= tf.shape(tf.nest.flatten(span)[0])[0]
        # Without a device of their own slices of what the host has would be taken on a
        # GPU, where the whole span would have to be sent for each.
        with tf.device("/device:CPU:0"):
            span = tf.cond(is_used_up, lambda: next(source), lambda: span)
            position = tf.where(is_used_up, 0, position)
            batch = tf.nest.map_structure(lambda steps: steps[position], span)
        return batch, (span, position + 1)

    def keep(self, batches: Spans, held: Any) -> None:
        batches.held = held


def _no_steps(spec: Any) -> Any:
    def none_of(values: tf.TensorSpec) -> tf.Tensor:
        _, *shape = values.shape
        return tf.zeros([0, *(size or 0 for size in shape)], values.dtype)

    return tf.nest.map_structure(none_of, spec)
