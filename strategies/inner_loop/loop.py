"""Inner loop: many steps inside the runtime for each call.

Python calls the inner loop from the outer loop. This module has the loop around a step
(`strategies.inner_loop.step`), which is the same for all synchronous strategies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.private_apis.graphs import counted_alone, flat_call
from strategies.common.types import (
    ReplicaFunction,
    ReplicaOutputs,
    StepResults,
    SummaryLevel,
    SyncedFlags,
    Update,
)
from strategies.inner_loop.input import Steps, TimedBatch
from strategies.inner_loop.results import (
    START,
    WAIT,
    Packing,
    step_results,
)
from strategies.inner_loop.step import Step, not_inlined, run_step


class InnerLoop:
    """Loop of steps inside one `tf.function`. Satisfies `LoopFunction`.

    The loop ends without an update if the loss of a step, a gradient or new layer state
    is not finite. Without updates, as in evaluation, it runs all steps and only sums.
    """

    def __init__(
        self, step: Step, replica_step: ReplicaFunction, update: Update | None
    ):
        self._step = step
        self._replica_step = replica_step
        self._update = update
        self._times_phases = update is not None and update.times_phases
        self._metrics = Packing()
        self._details = Packing()
        self._function: Any = None
        # Specification of the input, if it is the same for all calls.
        self._signature: Any = None
        self._flat_call: Callable[[Sequence[tf.Tensor]], Any] | None = None
        self.graph: tf.Graph | None = None

    def trace(self, batches: Any) -> tf.Graph:
        """Traces the loop without running a step, and returns its graph."""
        arguments = loop_arguments(0, SummaryLevel.NONE, SyncedFlags())
        function = self.function_of(batches)
        concrete = function.get_concrete_function(self._given(batches), *arguments)
        if self._signature is not None:
            # Every call has the same specification. To find the trace for it takes a
            # millisecond of each call, and to bind its arguments takes 0.4 more.
            self._flat_call = flat_call(concrete)
        return concrete.graph

    def num_traces(self) -> int:
        if self._function is None:
            return 0
        return int(self._function.experimental_get_tracing_count())

    def function_of(self, batches: Any) -> Any:
        """Returns the `tf.function`, which is made for the first batches."""
        # Later batches have the same specification.
        if self._function is None:
            signature = self._signature = self._step.input.signature(batches)
            if signature is not None:
                signature = (_flat(signature), *_ARGUMENTS)
            self._function = tf.function(
                counted_alone(self._run), autograph=False, input_signature=signature
            )
        return self._function

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        self._step.before_call()
        arguments = loop_arguments(num_steps, observe, local_flags or SyncedFlags())
        if self._flat_call is None:
            function = self.function_of(batches)
            outputs, left = function(self._given(batches), *arguments)
        else:
            outputs, left = self._flat_call([*self._given(batches), *arguments])
        self._step.input.keep(batches, left)
        results = self.results(outputs)
        self._step.after_call()
        return results

    def _given(self, batches: Any) -> Any:
        """Returns the arguments of the function for the input of a call."""
        given = self._step.input.arguments(batches)
        return given if self._signature is None else _flat(given)

    def results(self, outputs: Sequence[Any]) -> StepResults:
        """Returns the results of one call, from the outputs of the function."""
        # `metrics` has a row for each requested step; the loop may have ended earlier.
        attempted, finite, metrics, stop, packed, norm = map(np.asarray, outputs)
        details = {}
        # Empty if the observed step was not reached.
        if packed.size:
            details = {**self._details.unpack(packed), "weight_norm": norm}
        return step_results(
            self._metrics.unpack(metrics[:attempted]),
            applied_steps=int(attempted) - int(not finite),
            stop=float(stop.flat[-1]),
            last_ended=float(stop.flat[0]),
            details=details,
        )

    def _run(
        self,
        batches: Any,
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        local_flags: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        self.graph = tf.compat.v1.get_default_graph()
        if self._signature is not None:
            batches = tf.nest.pack_sequence_as(
                self._signature, batches, expand_composites=True
            )
        steps = self._steps(num_steps, observe, local_flags)
        last, left, ended = self._step.input.run(batches, steps)
        state = LoopState(*last)
        # The end of the last step. Other steps end when the next one starts.
        with tf.control_dependencies([state.attempted]):
            stop = tf.timestamp()
        if self._times_phases and ended is not None:
            stop = tf.stack([ended, stop])
        norm = self._weight_norm(observe)
        metrics = state.metrics.stack()
        outputs = state.attempted, state.finite, metrics, stop, state.details, norm
        return outputs, left

    def _steps(
        self, num_steps: tf.Tensor, observe: tf.Tensor, local_flags: tf.Tensor
    ) -> Steps:
        """Returns the steps of one call, as parts of a loop.

        Args:
          num_steps: Number of steps, int32.
          observe: `SummaryLevel` of the last step, int32.
          local_flags: Values of this process's `SyncedFlags`, float64 [fields].
        """

        def proceed(attempted: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return finite & (attempted < num_steps)

        def run(loop_state: Sequence[Any], taken: TimedBatch) -> LoopState:
            state = LoopState(*loop_state)
            # Only the last step of a call is observed.
            is_last = tf.equal(state.attempted, num_steps - 1)
            level = tf.where(is_last, observe, 0)
            batch = taken.batch
            if self._times_phases:
                # The runtime may read a clock at any time if no operation depends on
                # it. Only tensors with rows do, because each identity takes time.
                with tf.control_dependencies([taken.start, taken.wait]):
                    batch = tf.nest.map_structure(
                        lambda value: tf.identity(value) if value.shape.rank else value,
                        batch,
                    )
            outputs = run_step(
                self._step,
                self._replica_step,
                self._update,
                batch,
                local_flags,
                lambda summed: self._observe(summed, level, state.details),
            )
            clock = {START: taken.start, WAIT: taken.wait}
            packed = self._metrics.pack({**outputs.metrics, **clock})
            # A batch that is computed again has the same position, so that its metrics
            # are written over these.
            return LoopState(
                attempted=state.attempted + outputs.num_done,
                finite=outputs.finite,
                metrics=state.metrics.write(state.attempted, packed),
                details=outputs.details,
            )

        return Steps(
            initial=tuple(_initial(num_steps)),
            shapes=tuple(_SHAPES),
            proceed=proceed,
            run=run,
        )

    def _observe(
        self, summed: ReplicaOutputs, level: tf.Tensor, details: tf.Tensor
    ) -> tf.Tensor:
        """Returns a description of the update, or earlier details if not requested."""
        update = self._update
        if update is None:
            return details
        describe = not_inlined(
            lambda outputs, with_histograms: self._details.pack(
                update.observe(outputs, with_histograms)
            )
        )
        with_histograms = level >= int(SummaryLevel.HISTOGRAMS)
        return tf.cond(
            level >= int(SummaryLevel.NORMS),
            lambda: describe(self._step.whole(summed), with_histograms),
            lambda: details,
            name="observe",
        )

    def _weight_norm(self, observe: tf.Tensor) -> tf.Tensor:
        """Returns the norm of the weights after the last step, zero if not observed."""
        # Not inside the loop: a branch of a step that reads weights of other tasks
        # costs every step messages, also if it is not taken. For four weights on a
        # parameter server these were eight of thirteen messages.
        update = self._update
        if update is None:
            return tf.zeros([], tf.float64)
        return tf.cond(
            observe >= int(SummaryLevel.NORMS),
            lambda: tf.cast(update.weight_norm(), tf.float64),
            lambda: tf.zeros([], tf.float64),
        )


class LoopState(NamedTuple):
    """State that the loop carries from one step to the next."""

    attempted: tf.Tensor
    finite: tf.Tensor
    metrics: tf.TensorArray
    details: tf.Tensor


# The number of packed values is known only once the step has been traced, too late for
# the shapes of a `tf.while_loop`.
_SHAPES = LoopState(
    attempted=tf.TensorShape([]),
    finite=tf.TensorShape([]),
    metrics=tf.TensorShape(None),
    details=tf.TensorShape([None]),
)


def _initial(num_steps: tf.Tensor) -> LoopState:
    return LoopState(
        attempted=tf.constant(0),
        finite=tf.constant(True),
        metrics=tf.TensorArray(tf.float64, num_steps, element_shape=[None]),
        details=tf.zeros([0], tf.float64),
    )


def _flat(structure: Any) -> tuple[Any, ...]:
    """Returns the tensors, or their specifications, of an input."""
    values = tf.nest.flatten(structure, expand_composites=True)
    # Examples without labels have None, and a specification without tensors.
    return tuple(value for value in values if value is not None)


# Specification of `loop_arguments`.
_ARGUMENTS = (
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([len(dataclasses.fields(SyncedFlags))], tf.float64),
)


def loop_arguments(
    num_steps: int, observe: SummaryLevel, local_flags: SyncedFlags
) -> tuple[tf.Tensor, ...]:
    """Returns the arguments of the loop as tensors."""
    # A Python number would be traced again for each value.
    return (
        tf.constant(num_steps, tf.int32),
        tf.constant(int(observe), tf.int32),
        tf.constant(dataclasses.astuple(local_flags), tf.float64),
    )
