"""Inner loop whose steps XLA compiles, many of them into one program.

The runtime starts every operation of a step by itself, which takes longer than the
computation of a small network. XLA makes one program of the loop over the steps of a
span, input and update included. It needs shapes that are known in advance: spans are
padded to the largest number of steps, and the padding is not computed. A smaller batch,
such as the last of an epoch, takes the step of the plain loop: more rows would change
what a model computes for a whole batch, such as a mean of activations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import (
    Batch,
    ReplicaFunction,
    ReplicaOutputs,
    SpanShape,
    Update,
)
from strategies.inner_loop.input import Steps, TimedSpan, steps_of_span
from strategies.inner_loop.loop import InnerLoop, LoopState
from strategies.inner_loop.results import START, WAIT
from strategies.inner_loop.step import Step, run_step


class CompiledLoop(InnerLoop):
    """Inner loop that runs all steps of a span as one program of XLA.

    No step is timed by itself: the steps of a span share its time evenly, and the
    first of them has waited for the span.
    """

    def __init__(
        self, step: Step, replica_step: ReplicaFunction, update: Update | None
    ):
        super().__init__(step, replica_step, update)
        apply_if = functools.partial(_apply_if, step.apply)
        self._compiled_step = dataclasses.replace(step, apply_if=apply_if)

    def function_of(self, batches: Any) -> Any:
        if self._function is None:
            self._span_shape = batches.largest_span
        return super().function_of(batches)

    def _steps(
        self, num_steps: tf.Tensor, observe: tf.Tensor, local_flags: tf.Tensor
    ) -> Steps:
        steps = super()._steps(num_steps, observe, local_flags)

        def run_span(taken: TimedSpan, state: Sequence[Any]) -> LoopState:
            def compiled() -> LoopState:
                return self._run_span(
                    taken, LoopState(*state), num_steps, observe, local_flags
                )

            if not self._span_shape.has_smaller_batches:
                return compiled()
            return tf.cond(
                tf.equal(tf.shape(taken.batches.indices)[1], self._span_shape.num_rows),
                compiled,
                lambda: LoopState(*steps_of_span(taken, steps, state)),
                name="whole_batches",
            )

        return dataclasses.replace(steps, run_span=run_span)

    def _run_span(
        self,
        taken: TimedSpan,
        state: LoopState,
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        local_flags: tf.Tensor,
    ) -> LoopState:
        """Runs the rest of a span, or fewer steps if the call ends before."""
        span, position = taken.batches, taken.position
        left = num_steps - state.attempted
        count = tf.minimum(left, tf.shape(span.step)[0] - position)
        # Without this the runtime may read the clock when the program has ended. The
        # identity is of this branch, whose operations wait for no tensor outside of it.
        with tf.control_dependencies([tf.identity(taken.wait)]):
            done, finite, metrics, gradients = self._compiled(
                _padded(span, self._span_shape), position, count, local_flags
            )
        with tf.control_dependencies([done]):
            stop = tf.timestamp()
        metrics = metrics[:done] + self._clock(taken, stop, done)
        # Outside of the program: XLA has no histograms. Only the last step of a call is
        # observed.
        summed = ReplicaOutputs(gradients=gradients, state={}, sums={})
        level = tf.where(tf.equal(count, left), observe, 0)
        return LoopState(
            attempted=state.attempted + done,
            finite=finite,
            metrics=state.metrics.scatter(state.attempted + tf.range(done), metrics),
            details=self._observe(summed, level, state.details),
        )

    def _clock(self, taken: TimedSpan, stop: tf.Tensor, done: tf.Tensor) -> tf.Tensor:
        """Returns the start and the wait of each step in the columns of both.

        Args:
          taken: Span with its times.
          stop: Time of the end of its last step, float64 seconds.
          done: Number of steps.

        Returns:
          float64 [done, length of a step's metrics], zero in all other columns.
        """
        steps = tf.range(tf.cast(done, tf.float64), dtype=tf.float64)
        each = (stop - taken.start - taken.wait) / tf.cast(done, tf.float64)
        is_first = tf.cast(tf.equal(steps, 0), tf.float64)
        starts = taken.start + (1 - is_first) * (taken.wait + steps * each)
        return self._metrics.columns({START: starts, WAIT: is_first * taken.wait})

    @functools.cached_property
    def _compiled(self) -> Any:
        return tf.function(self._loop, autograph=False, jit_compile=True)

    def _loop(
        self, span: Batch, position: tf.Tensor, count: tf.Tensor, local_flags: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[Any]]:
        """Runs steps of a span; the function that XLA compiles.

        Args:
          span: Padded batches [steps, ...].
          position: Position of the first step in the span, int32.
          count: Number of steps, int32.
          local_flags: Values of this process's `SyncedFlags`, float64 [fields].

        Returns:
          Number of steps that were computed; whether the loop may go on; the metrics of
          each step, float64 [steps, length]; the summed gradients of the last step.
        """

        def run(index: tf.Tensor) -> _CompiledStep:
            # XLA would compile a slice anew for every position.
            batch = tf.nest.map_structure(
                lambda rows: tf.gather(rows, position + index), span
            )
            gradients: list[Any] = []

            def keep_gradients(summed: ReplicaOutputs) -> tf.Tensor:
                gradients.extend(summed.gradients)
                return tf.zeros([0], tf.float64)

            outputs = run_step(
                self._compiled_step,
                self._replica_step,
                self._update,
                batch,
                local_flags,
                keep_gradients,
            )
            clock = dict.fromkeys((START, WAIT), tf.zeros([], tf.float64))
            return _CompiledStep(
                num_done=tf.cast(outputs.num_done, tf.int32),
                finite=outputs.finite,
                metrics=self._metrics.pack({**outputs.metrics, **clock}),
                gradients=gradients,
            )

        # Traced before the loop, which has to know the shapes of its state.
        step = tf.function(run, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32)
        )
        one = step.structured_outputs
        rows = tf.TensorArray(
            tf.float64, self._span_shape.num_steps, element_shape=one.metrics.shape
        )
        nothing = tf.nest.map_structure(
            lambda tensor: tf.zeros(tensor.shape, tensor.dtype), one.gradients
        )

        def body(
            index: tf.Tensor, finite: tf.Tensor, rows: tf.TensorArray, earlier: Any
        ) -> tuple[Any, ...]:
            del finite, earlier
            results = step(index)
            rows = rows.write(index, results.metrics)
            return index + results.num_done, results.finite, rows, results.gradients

        done, finite, rows, gradients = tf.while_loop(
            lambda index, finite, *_: finite & (index < count),
            body,
            [tf.constant(0), tf.constant(True), rows, nothing],
        )
        return done, finite, rows.stack(), gradients


def _apply_if(
    apply: Callable[[Update, Any], object],
    update: Update,
    outputs: ReplicaOutputs,
    finite: tf.Tensor,
) -> None:
    """Applies an update by `Step.apply` if a bool scalar is true, without a branch.

    XLA copies each variable that a branch changes, in every step: a tenth of the time
    of a step of a 784-512-512-10 network. It fuses a choice between two values with the
    operation that computes the new one.
    """
    variables = update.variables()
    before = [variable.read_value() for variable in variables]
    apply(update, outputs)
    for variable, value in zip(variables, before, strict=True):
        variable.assign(tf.where(finite, variable, value))


class _CompiledStep(NamedTuple):
    """Results of one compiled step: its metrics, and the summed gradients."""

    num_done: tf.Tensor
    finite: tf.Tensor
    metrics: tf.Tensor
    gradients: list[Any]


def _padded(span: Batch, shape: SpanShape) -> Batch:
    """Returns a span with the most steps, the missing ones zeros."""

    def padded(tensor: tf.Tensor) -> tf.Tensor:
        # Scalars of a step have the axis of steps alone. A span without steps has no
        # rows, either.
        sizes = (shape.num_steps, shape.num_rows)[: tensor.shape.rank]
        missing = sizes - tf.shape(tensor)[: len(sizes)]
        behind = [[0, missing[axis]] for axis in range(len(sizes))]
        inner = tensor.shape[len(sizes) :]
        enlarged = tf.pad(tensor, [*behind, *([[0, 0]] * len(inner))])
        return tf.ensure_shape(enlarged, [*sizes, *inner])

    return tf.nest.map_structure(padded, span)
