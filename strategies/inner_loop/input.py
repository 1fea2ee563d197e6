"""Input of the training loop: one batch for each step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from strategies.common.types import SpanShape

# Names of the loops in TensorBoard's graph.
_SPANS, _STEPS = "spans", "steps"


class TimedBatch(NamedTuple):
    """Batch of a step, with its times.

    Attributes:
      batch: Batch in the form that the strategy's steps take.
      start: Time of the request, float64 seconds.
      wait: Duration from the request to the arrival, float64 seconds.
    """

    batch: Any
    start: tf.Tensor
    wait: tf.Tensor


class TimedSpan(NamedTuple):
    """Rest of a span, with the times of its first step.

    Attributes:
      batches: Batches of all steps of the span, each tensor [steps, ...].
      position: Position of the next step in the span, int32.
      start: Time of the request, float64 seconds.
      wait: Duration from the request to the arrival, float64 seconds.
    """

    batches: Any
    position: tf.Tensor
    start: tf.Tensor
    wait: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Parts of a call's steps, from which a `StepInput` makes a loop.

    Attributes:
      initial: Initial state of the loop. Its first entry is the number of steps so far,
        int32.
      shapes: Invariant shapes of the entries of the state.
      proceed: Function from a state to a bool scalar, true for another step.
      run: Function from a state and a batch to the next state.
      run_span: Function from the rest of a span and a state to the state after all of
        its steps; None to call `run` for each of them.
    """

    initial: Sequence[Any]
    shapes: Sequence[Any]
    proceed: Callable[..., tf.Tensor]
    run: Callable[[Sequence[Any], TimedBatch], Sequence[Any]]
    run_span: Callable[[TimedSpan, Sequence[Any]], Sequence[Any]] | None = None


class StepInput(Protocol):
    """Source of the batch of each step in a loop.

    Each strategy chooses the type of the input and of the batches.
    """

    def arguments(self, batches: Any) -> Any:
        """Returns the arguments of the traced loop, iterators and tensors."""

    def signature(self, batches: Any) -> Any:
        """Returns the specification of the arguments; None to take the first call's."""

    def run(
        self, arguments: Any, steps: Steps
    ) -> tuple[Sequence[Any], Any, tf.Tensor | None]:
        """Runs all steps of a call, as graph operations.

        Returns:
          The last state, the rest of the input, and the time at which the last step
          ended, float64 seconds, if the call ends later; or None.
        """

    # A traced function cannot keep the rest of the input itself, so that its caller
    # passes the rest from `run` to here.
    def keep(self, batches: Any, left: Any) -> None:
        """Stores the rest of the input for the next call."""


@dataclasses.dataclass(frozen=True, slots=True)
class IndexedInput:
    """Input that is computed for each step. Satisfies `StepInput`.

    Attributes:
      batch_at: Function from the opened source and the number of earlier steps of this
        call to a batch.
      open: Function from the arguments of the loop to the source, once a call.
    """

    batch_at: Callable[[Any, tf.Tensor], Any]
    open: Callable[[Any], Any] = lambda arguments: arguments

    def arguments(self, batches: Any) -> Any:
        return batches

    def signature(self, batches: Any) -> None:
        return None

    def run(
        self, arguments: Any, steps: Steps
    ) -> tuple[Sequence[Any], Any, tf.Tensor | None]:
        source = self.open(arguments)

        def body(*state: Any) -> Sequence[Any]:
            taken = _timed(lambda: self.batch_at(source, state[0]))
            return tuple(steps.run(state, taken))

        loop = tf.while_loop(
            steps.proceed, body, steps.initial, steps.shapes, name=_STEPS
        )
        return loop, (), None

    def keep(self, batches: Any, left: Any) -> None:
        return None


class StepChunks:
    """Batches from a tf.data pipeline, several steps in one element (a span).

    Every element costs a wait for another thread, for any content: TensorFlow runs
    `IteratorGetNext` in a separate thread (tensorflow/core/kernels/data/iterator_ops.h,
    `HybridAsyncOpKernel`). That was a third of a step of a 5-10-2 network
    (docs/performance_history.md). A call of the loop may end inside a span. The rest of
    the span and the span after it are stored here for the next call.
    """

    def __init__(self, dataset: tf.data.Dataset, largest_span: SpanShape | None = None):
        """Starts the pipeline.

        Args:
          dataset: Dataset of structures of tensors [steps, ...].
          largest_span: Size that no span exceeds; None if unknown.
        """
        self.largest_span = largest_span
        nothing = no_steps(dataset.element_spec)
        # The loop requests one more span while it computes the last one. Without this
        # empty span the request would end the loop with OutOfRangeError.
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(nothing))
        self.iterator = iter(dataset)
        self.spec = dataset.element_spec
        # Two empty spans: the loop passes over them while it fetches the first spans.
        self.left = _InputState(nothing, tf.constant(0), nothing)


class _InputState(NamedTuple):
    """Steps that were taken out of a pipeline and not computed yet.

    Attributes:
      span: Present span.
      position: Position of the next step in the present span, int32.
      upcoming: Span after the present one.
    """

    span: Any
    position: tf.Tensor
    upcoming: Any


class PrefetchedChunks:
    """Input of loops that are called with `StepChunks`. Satisfies `StepInput`.

    The next span is taken out of the pipeline while the steps of the present span are
    computed. This more than halves the wait of steps with images
    (docs/performance_history.md).
    """

    # Two nested loops, because each state that a loop carries costs some operations a
    # step, and a span changes only once in many steps.
    def arguments(self, batches: StepChunks) -> Any:
        return batches.iterator, batches.left

    def signature(self, batches: StepChunks) -> Any:
        position = tf.TensorSpec([], tf.int32)
        left = _InputState(batches.spec, position, batches.spec)
        return tf.data.IteratorSpec(batches.spec), left

    def run(
        self, arguments: Any, steps: Steps
    ) -> tuple[Sequence[Any], Any, tf.Tensor | None]:
        iterator, left = arguments

        def body(left: _InputState, ended: tf.Tensor, *state: Any) -> Sequence[Any]:
            # Otherwise the runtime may read this clock after those of the inner loop.
            with tf.control_dependencies([ended, *tf.nest.flatten(left)]):
                wait = tf.timestamp() - ended
            span, position, upcoming = left
            is_over = position >= _num_steps(span)
            span, position = tf.cond(
                is_over, lambda: (upcoming, tf.constant(0)), lambda: (span, position)
            )
            # This depends on no step, so that it runs in parallel with the steps.
            upcoming = tf.cond(is_over, lambda: next(iterator), lambda: upcoming)
            taken = TimedSpan(span, position, ended, wait)
            if steps.run_span is None:
                after = steps_of_span(taken, steps, state)
            else:
                after = steps.run_span(taken, state)
            with tf.control_dependencies([after[0]]):
                ended = tf.timestamp()
            return [
                _InputState(span, position + after[0] - state[0], upcoming),
                ended,
                *after,
            ]

        shapes = tf.nest.map_structure(lambda values: values.shape, left)
        left, ended, *state = tf.while_loop(
            lambda left, ended, *state: steps.proceed(*state),
            body,
            [left, tf.timestamp(), *steps.initial],
            [shapes, tf.TensorShape([]), *steps.shapes],
            parallel_iterations=1,
            name=_SPANS,
        )
        # The call ends once the next span has arrived.
        return state, left, ended

    def keep(self, batches: StepChunks, left: Any) -> None:
        batches.left = left


def steps_of_span(span: TimedSpan, steps: Steps, state: Sequence[Any]) -> Sequence[Any]:
    """Runs the rest of a span, or fewer steps if the call ends before."""
    # state[0] counts the steps of the whole call, of which `begin` precede this span.
    batches, position = span.batches, span.position
    begin, stop = state[0], state[0] + _num_steps(batches) - position

    def proceed(*inner: Any) -> tf.Tensor:
        return (inner[0] < stop) & steps.proceed(*inner)

    def body(*inner: Any) -> Sequence[Any]:
        is_first = tf.equal(inner[0], begin)
        at = position + inner[0] - begin
        # On the host, where the span is. A GPU would need the whole span for each
        # slice.
        with tf.device("/device:CPU:0"):
            batch = tf.nest.map_structure(lambda values: values[at], batches)
        # Only the first step of a span waits; the others follow at once.
        start = tf.where(is_first, span.start, tf.timestamp())
        wait = tf.where(is_first, span.wait, tf.zeros([], tf.float64))
        return tuple(steps.run(inner, TimedBatch(batch, start, wait)))

    return tf.while_loop(proceed, body, state, steps.shapes, name=_STEPS)


def _num_steps(span: Any) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(span)[0])[0]


def no_steps(spec: Any) -> Any:
    """Returns a span without steps, as small as its specification allows."""

    def of(values: tf.TensorSpec) -> tf.Tensor:
        inner = (size or 0 for size in values.shape[1:])
        return tf.zeros([0, *inner], values.dtype)

    return tf.nest.map_structure(of, spec)


def _timed(take: Callable[[], Any]) -> TimedBatch:
    """Returns a batch with the time of its request and the duration of the wait."""
    # Control dependencies keep the readings of the clock in order. They cost nothing
    # measurable (131.7 against 130.4 microseconds a step of a 5-10-2 network).
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        taken = take()
    with tf.control_dependencies(tf.nest.flatten(taken)):
        received = tf.timestamp()
    with tf.control_dependencies([received]):
        taken = tf.nest.map_structure(tf.identity, taken)
    return TimedBatch(taken, start, received - start)
