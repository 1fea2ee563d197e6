"""How the steps of a call come by their batches, one step after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

# Names of the loops in TensorBoard's graph.
_SPANS, _STEPS = "spans", "steps"


class Taken(NamedTuple):
    """A step's batch.

    Attributes:
      batch: whatever the strategy's steps are given.
      start: when it was asked for, float64 seconds.
      wait: how many seconds it took to come, float64.
    """

    batch: Any
    start: tf.Tensor
    wait: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of a call, in parts that a `StepInput` puts together to a loop.

    Attributes:
      initial: what the first step is handed: first how many came before, int32.
      shapes: which each part of that keeps.
      proceed: from a state, whether there is to be another step.
      run: a step, from a state and its batch to the next state.
    """

    initial: Sequence[Any]
    shapes: Sequence[Any]
    proceed: Callable[..., tf.Tensor]
    run: Callable[[Sequence[Any], Taken], Sequence[Any]]


class StepInput(Protocol):
    """From what a loop is called with to the batch of each step.

    What a loop is called with is a strategy's own, as are its batches.
    """

    def arguments(self, batches: Any) -> Any:
        """What is handed to the traced loop: iterators and tensors."""

    def signature(self, batches: Any) -> Any:
        """The arguments' specification; None for what they are at the first call."""

    def run(self, arguments: Any, steps: Steps) -> tuple[Sequence[Any], Any]:
        """All steps of a call, as graph operations.

        Returns:
          The last state, and what is left of the input.
        """

    def keep(self, batches: Any, left: Any) -> None:
        """Takes what a call left."""


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

    def run(self, arguments: Any, steps: Steps) -> tuple[Sequence[Any], Any]:
        source = self.open(arguments)

        def body(*state: Any) -> Sequence[Any]:
            taken = _timed(lambda: self.batch_at(source, state[0]))
            return tuple(steps.run(state, taken))

        loop = tf.while_loop(
            steps.proceed, body, steps.initial, steps.shapes, name=_STEPS
        )
        return loop, ()

    def keep(self, batches: Any, left: Any) -> None:
        return None


class Spans:
    """Batches that come out of a tf.data pipeline, those of several steps at a time.

    To take an element out of a pipeline means to wait for another thread, whatever is
    in it: TensorFlow runs `IteratorGetNext` in one of its own (tensorflow/core/kernels/
    data/iterator_ops.h, `HybridAsyncOpKernel`). That was a third of a step of a 5-10-2
    network (docs/performance.md). A call of the loop may end in the middle of a span;
    what is left is kept here for the next, and the span after that.
    """

    def __init__(self, dataset: tf.data.Dataset):
        """Starts the pipeline.

        Args:
          dataset: of structures of tensors [steps, ...].
        """
        nothing = _no_steps(dataset.element_spec)
        # What is asked for while the last span is computed.
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(nothing))
        self.iterator = iter(dataset)
        self.spec = dataset.element_spec
        self.left = _Left(nothing, tf.constant(0), nothing)


class _Left(NamedTuple):
    """What has been taken out of a pipeline and not been computed.

    Attributes:
      span: whose steps are computed.
      position: of the next one in it, int32.
      upcoming: the span after that.
    """

    span: Any
    position: tf.Tensor
    upcoming: Any


class FromSpans:
    """Input of loops that are called with `Spans`. Satisfies `StepInput`.

    Two loops, one within the other: what changes from step to step costs some
    operations in each, and a span changes once in many. The next span is taken out of
    the pipeline while the steps of one are computed, which more than halves what steps
    of images wait for it (docs/performance.md).
    """

    def arguments(self, batches: Spans) -> Any:
        return batches.iterator, batches.left

    def signature(self, batches: Spans) -> Any:
        position = tf.TensorSpec([], tf.int32)
        left = _Left(batches.spec, position, batches.spec)
        return tf.data.IteratorSpec(batches.spec), left

    def run(self, arguments: Any, steps: Steps) -> tuple[Sequence[Any], Any]:
        iterator, left = arguments

        def body(left: _Left, ended: tf.Tensor, *state: Any) -> Sequence[Any]:
            # The clock that is read before a loop may be read after one inside of it.
            with tf.control_dependencies([ended, *tf.nest.flatten(left)]):
                wait = tf.timestamp() - ended
            span, position, upcoming = left
            is_over = position >= _num_steps(span)
            span, position = tf.cond(
                is_over, lambda: (upcoming, tf.constant(0)), lambda: (span, position)
            )
            # Depends on no step, and runs beside them.
            upcoming = tf.cond(is_over, lambda: next(iterator), lambda: upcoming)
            after = _steps_of_span(Taken((span, position), ended, wait), steps, state)
            with tf.control_dependencies([after[0]]):
                ended = tf.timestamp()
            return [
                _Left(span, position + after[0] - state[0], upcoming),
                ended,
                *after,
            ]

        shapes = tf.nest.map_structure(lambda values: values.shape, left)
        left, _, *state = tf.while_loop(
            lambda left, ended, *state: steps.proceed(*state),
            body,
            [left, tf.timestamp(), *steps.initial],
            [shapes, tf.TensorShape([]), *steps.shapes],
            parallel_iterations=1,
            name=_SPANS,
        )
        return state, left

    def keep(self, batches: Spans, left: Any) -> None:
        batches.left = left


def _steps_of_span(span: Taken, steps: Steps, state: Sequence[Any]) -> Sequence[Any]:
    """As many steps as a span has, or as are wanted."""
    batches, position = span.batch
    begin, stop = state[0], state[0] + _num_steps(batches) - position

    def proceed(*inner: Any) -> tf.Tensor:
        return (inner[0] < stop) & steps.proceed(*inner)

    def body(*inner: Any) -> Sequence[Any]:
        is_first = tf.equal(inner[0], begin)
        at = position + inner[0] - begin
        # Without a device of their own slices of what the host has would be taken on a
        # GPU, where the whole span would have to be sent for each.
        with tf.device("/device:CPU:0"):
            batch = tf.nest.map_structure(lambda values: values[at], batches)
        start = tf.where(is_first, span.start, tf.timestamp())
        wait = tf.where(is_first, span.wait, tf.zeros([], tf.float64))
        return tuple(steps.run(inner, Taken(batch, start, wait)))

    return tf.while_loop(proceed, body, state, steps.shapes, name=_STEPS)


def _num_steps(span: Any) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(span)[0])[0]


def _no_steps(spec: Any) -> Any:
    """A span of none, as small as its specification allows."""

    def of(values: tf.TensorSpec) -> tf.Tensor:
        inner = (size or 0 for size in values.shape[1:])
        return tf.zeros([0, *inner], values.dtype)

    return tf.nest.map_structure(of, spec)


def _timed(take: Callable[[], Any]) -> Taken:
    """What is taken, when it was asked for, and how many seconds it took to come.

    The clock's readings are held in their order by control dependencies, which
    cost nothing measurable (131.7 against 130.4 microseconds a step of a
    5-10-2 network).
    """
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        taken = take()
    with tf.control_dependencies(tf.nest.flatten(taken)):
        received = tf.timestamp()
    with tf.control_dependencies([received]):
        taken = tf.nest.map_structure(tf.identity, taken)
    return Taken(taken, start, received - start)
