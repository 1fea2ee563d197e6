"""Inner loop: many steps inside the runtime for each call.

Python calls the inner loop from the outer loop. Synchronous strategies differ in how a
step computes and sums replica outputs, and in where the update runs. This module has
the loop around a step, which is the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.types import (
    Batch,
    ReplicaFunction,
    ReplicaOutputs,
    StepFuture,
    StepResults,
    SummaryLevel,
    SyncedFlags,
    Update,
)
from strategies.inner_loop.input import PrefetchedChunks, StepInput, Steps, Taken
from strategies.inner_loop.reduction import totals
from strategies.inner_loop.results import (
    NOT_FINITE,
    NOTHING,
    OWN_TOTALS,
    START,
    WAIT,
    CompletedSteps,
    Packing,
    in_a_vector,
    proposal,
    step_results,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Parts of one step of a synchronous strategy.

    Each strategy chooses the type of its sums: plain replica outputs, or values that
    exist once for every replica.

    Attributes:
      all_reduce_gradients: Function that runs a replica step on every replica and sums
        the replica outputs.
      apply: Function that runs the update on the sum, in the right context, and returns
        the values to report.
      first: Function that returns the sum on the first replica, as plain tensors.
      input: Source of the batches.
      reported: Names of the values that `apply` returns.
      apply_if: Function that applies the update where the weights are, if a bool scalar
        is true, and reports nothing. It replaces `apply`.
    """

    all_reduce_gradients: Callable[[ReplicaFunction, Any], Any]
    apply: Callable[[Update, Any], Mapping[str, tf.Tensor]]
    first: Callable[[Any], ReplicaOutputs]
    input: StepInput = dataclasses.field(default_factory=PrefetchedChunks)
    reported: tuple[str, ...] = ()
    apply_if: Callable[[Update, Any, tf.Tensor], None] | None = None


class InnerLoop:
    """Loop of steps inside one `tf.function`. Satisfies `LoopFunction`.

    The loop ends without an update if a sum of a step (such as the loss), a gradient or
    new layer state is not finite.
    """

    def __init__(
        self, step: Step, replica_step: ReplicaFunction, update: Update | None
    ):
        """Combines a strategy's step with the computation of a model.

        Args:
          step: Parts of the strategy's step.
          replica_step: Function that computes the outputs of one replica.
          update: Update that applies their sum; None to only sum, as evaluation does.
        """
        self._step = step
        self._replica_step = replica_step
        self._update = update
        self._figures = Packing()
        self._details = Packing()
        self._function: Any = None
        self.graph: tf.Graph | None = None

    def trace(self, batches: Any) -> tf.Graph:
        """Traces the loop without running a step, and returns its graph."""
        arguments = loop_arguments(0, SummaryLevel.NOT, SyncedFlags())
        given = self._step.input.arguments(batches)
        function = self.function_of(batches)
        return function.get_concrete_function(given, *arguments).graph

    def num_traces(self) -> int:
        if self._function is None:
            return 0
        return int(self._function.experimental_get_tracing_count())

    def function_of(self, batches: Any) -> Any:
        """Returns the `tf.function`, which is made for the first batches."""
        # Later batches have the same specification.
        if self._function is None:
            signature = self._step.input.signature(batches)
            if signature is not None:
                signature = (signature, *_ARGUMENTS)
            self._function = tf.function(
                self._run, autograph=False, input_signature=signature
            )
        return self._function

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NOT,
        local_flags: SyncedFlags | None = None,
    ) -> StepFuture:
        arguments = loop_arguments(num_steps, observe, local_flags or SyncedFlags())
        given = self._step.input.arguments(batches)
        outputs, left = self.function_of(batches)(given, *arguments)
        self._step.input.keep(batches, left)
        return CompletedSteps(self.results(outputs))

    def results(self, outputs: Sequence[Any]) -> StepResults:
        """Returns the results of one call, from the outputs of the function."""
        # `figures` has a row for each requested step; the loop may have ended earlier.
        attempted, finite, figures, stop, details, norm = map(np.asarray, outputs)
        return step_results(
            self._figures.unpack(figures[:attempted]),
            applied_steps=int(attempted) - int(not finite),
            stop=float(stop),
            details=self._all_details(details, norm),
        )

    def _all_details(
        self, details: np.ndarray, weight_norm: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the details by name; empty if the observed step was not reached."""
        if not details.size:
            return {}
        return {**self._details.unpack(details), "weight_norm": weight_norm}

    def _run(
        self,
        batches: Any,
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        local_flags: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        self.graph = tf.compat.v1.get_default_graph()

        def proceed(*state: Any) -> tf.Tensor:
            return _State(*state).finite & (_State(*state).attempted < num_steps)

        def run(loop_state: Sequence[Any], taken: Taken) -> _State:
            # The order of a step: compute and sum, check, observe, apply, report.
            state = _State(*loop_state)
            replica_step = self._with_proposal(local_flags)
            summed = self._step.all_reduce_gradients(replica_step, taken.batch)
            sums, changes, finite = self._examine(summed)
            # Only the last step of a call is observed.
            is_last = tf.equal(state.attempted, num_steps - 1)
            details = self._look(summed, tf.where(is_last, observe, 0), state.details)
            reported = self._apply_if(finite, summed, changes)
            clock = {START: taken.start, WAIT: taken.wait}
            packed = self._figures.pack({**sums, **reported, **clock})
            num_done, finite = self._done(sums, finite)
            return _State(
                attempted=state.attempted + num_done,
                finite=finite,
                figures=state.figures.write(state.attempted, packed),
                details=details,
            )

        steps = Steps(
            initial=tuple(_initial(num_steps)),
            shapes=tuple(_SHAPES),
            proceed=proceed,
            run=run,
        )
        last, left = self._step.input.run(batches, steps)
        state = _State(*last)
        # The end of the last step. Other steps end when the next one starts.
        with tf.control_dependencies([state.attempted]):
            stop = tf.timestamp()
        norm = self._weight_norm(observe)
        figures = state.figures.stack()
        outputs = state.attempted, state.finite, figures, stop, state.details, norm
        return outputs, left

    def _with_proposal(self, local_flags: tf.Tensor) -> ReplicaFunction:
        """Returns the replica step with this process's proposed values in its sums."""

        def step(batch: Batch) -> ReplicaOutputs:
            shares = self._replica_step(batch)
            return shares._replace(sums={**shares.sums, **proposal(local_flags)})

        return step

    def _done(
        self, sums: Mapping[str, tf.Tensor], finite: tf.Tensor
    ) -> tuple[tf.Tensor | int, tf.Tensor]:
        """Returns how many steps that was, and whether the loop may go on.

        None, if it is to be computed again: the next turn of the loop has the batch of
        the same position, and writes its figures over these.
        """
        again = None if self._update is None else self._update.again(sums, finite)
        if again is None:
            return 1, finite
        return 1 - tf.cast(again, tf.int32), finite | again

    def _look(self, summed: Any, observe: tf.Tensor, details: tf.Tensor) -> tf.Tensor:
        update = self._update
        if update is None:
            return details
        look = _apart(
            lambda shares, with_histograms: self._details.pack(
                update.observe(shares, with_histograms)
            )
        )
        shares = self._step.first(summed)
        with_histograms = observe >= int(SummaryLevel.CLOSELY)
        return tf.cond(
            observe >= int(SummaryLevel.NORMS),
            lambda: look(shares, with_histograms),
            lambda: details,
            name="look",
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

    def _examine(
        self, summed: Any
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """Returns the sums, the totals of the changes, and whether all are finite."""
        # Evaluation has no changes, and local SGD sends its own totals as a sum.
        shares = self._step.first(summed)
        sums = dict(shares.sums)
        changes = sums.pop(OWN_TOTALS, None)
        if self._update is None:
            changes = tf.zeros([0], tf.float64)
        elif changes is None:
            changes = totals(shares)
        numbers = in_a_vector([*sums.values(), changes])
        return sums, changes, tf.reduce_all(tf.math.is_finite(numbers))

    def _apply_if(
        self, finite: tf.Tensor, summed: Any, changes: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        update = self._update
        if update is None:
            return {}

        if self._step.apply_if is not None:
            self._step.apply_if(update, summed, finite)
            nothing = tf.constant(NOTHING, tf.float64)
            first = tf.cond(finite, lambda: nothing, lambda: _first_not_finite(changes))
            return {NOT_FINITE: first}

        def apply() -> list[tf.Tensor]:
            reported = self._step.apply(update, summed)
            values = [tf.cast(reported[n], tf.float64) for n in self._step.reported]
            return [tf.constant(NOTHING, tf.float64), *values]

        def leave() -> list[tf.Tensor]:
            zeros = [tf.zeros([], tf.float64)] * len(self._step.reported)
            return [_first_not_finite(changes), *zeros]

        # The condition stands outside every replica's own function, because
        # MirroredStrategy cannot merge replicas inside a branch of one.
        names = (NOT_FINITE, *self._step.reported)
        results = tf.cond(finite, apply, leave, name="update")
        return dict(zip(names, results, strict=True))


class _State(NamedTuple):
    """State that the loop carries from one step to the next."""

    attempted: tf.Tensor
    finite: tf.Tensor
    figures: tf.TensorArray
    details: tf.Tensor


# The number of packed values is known only once the step has been traced, too late for
# the shapes of a `tf.while_loop`.
_SHAPES = _State(
    attempted=tf.TensorShape([]),
    finite=tf.TensorShape([]),
    figures=tf.TensorShape(None),
    details=tf.TensorShape([None]),
)


def _initial(num_steps: tf.Tensor) -> _State:
    return _State(
        attempted=tf.constant(0),
        finite=tf.constant(True),
        figures=tf.TensorArray(tf.float64, num_steps, element_shape=[None]),
        details=tf.zeros([0], tf.float64),
    )


def _apart(function: Callable[..., Any]) -> Any:
    """Returns a function that stays one operation in the graph of its caller."""
    # TensorFlow visits every operation of a branch that is not taken, to mark the next
    # one as dead. Observing a step had 400 operations, which took 14 of the 148
    # microseconds of each step of a 5-10-2 network.
    return tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )


@_apart
def _first_not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """Returns the index of the first number that is not finite, or NOTHING, float64."""
    places = tf.where(~tf.math.is_finite(numbers))[:, 0]
    first = tf.concat([places, [NOTHING]], axis=0)[0]
    return tf.cast(first, tf.float64)


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
