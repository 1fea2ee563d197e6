"""The inner of the two loops: many steps inside the runtime for one call from Python.

Synchronous strategies differ in how the shares of one step are computed and
summed and in where the update runs. The loop around that is the same, and here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.types import (
    Agreed,
    Batch,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    StepResults,
    Update,
)
from strategies.inner_loop.input import FromSpans, StepInput, Steps, Taken
from strategies.inner_loop.reduction import totals
from strategies.inner_loop.results import (
    NOT_FINITE,
    NOTHING,
    OWN_TOTALS,
    START,
    WAIT,
    Packing,
    Ready,
    in_a_vector,
    proposal,
    step_results,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a synchronous strategy, in parts.

    The type of what is summed is the strategy's own: plain shares, or values
    that exist once for every replica.

    Attributes:
      sum_shares: runs a replica's step on every replica and sums their shares.
      apply: runs the update on the sum, in the right context, and returns the
        values it reports.
      first: the sum as the first replica sees it, as plain tensors.
      input: where the batch of a step comes from.
      reported: names of the values that `apply` returns.
      apply_if: applies the update if a bool scalar says so, where the weights are, and
        reports nothing; in place of `apply`.
    """

    sum_shares: Callable[[ReplicaStep, Any], Any]
    apply: Callable[[Update, Any], Mapping[str, tf.Tensor]]
    first: Callable[[Any], Shares]
    input: StepInput = dataclasses.field(default_factory=FromSpans)
    reported: tuple[str, ...] = ()
    apply_if: Callable[[Update, Any, tf.Tensor], None] | None = None


class InnerLoop:
    """Runs a step repeatedly inside one `tf.function`. Satisfies `RunSteps`.

    If any sum of a step (its loss among them), gradient or new layer state is not
    finite, its update is not applied and the loop ends.
    """

    def __init__(self, step: Step, replica_step: ReplicaStep, update: Update | None):
        """Joins the two sides of a step.

        Args:
          step: a strategy's way of running the sides.
          replica_step: computes one replica's shares.
          update: applies their sum; None to only add up, as evaluation does.
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
        arguments = loop_arguments(0, Observe.NOT, Agreed())
        given = self._step.input.arguments(batches)
        function = self.function_of(batches)
        return function.get_concrete_function(given, *arguments).graph

    def num_traces(self) -> int:
        if self._function is None:
            return 0
        return int(self._function.experimental_get_tracing_count())

    def function_of(self, batches: Any) -> Any:
        """The `tf.function`, which is made for the first batches; others are alike."""
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
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        arguments = loop_arguments(num_steps, observe, proposed or Agreed())
        given = self._step.input.arguments(batches)
        outputs, left = self.function_of(batches)(given, *arguments)
        self._step.input.keep(batches, left)
        return Ready(self.results(outputs))

    def results(self, outputs: Sequence[Any]) -> StepResults:
        """What the steps of one call reported, from what the function returned."""
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
        """None if the loop ended before it came to the step to be observed."""
        if not details.size:
            return {}
        return {**self._details.unpack(details), "weight_norm": weight_norm}

    def _run(
        self,
        batches: Any,
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        proposed: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        self.graph = tf.compat.v1.get_default_graph()

        def proceed(*state: Any) -> tf.Tensor:
            return _State(*state).finite & (_State(*state).attempted < num_steps)

        def run(loop_state: Sequence[Any], taken: Taken) -> _State:
            state = _State(*loop_state)
            replica_step = self._with_proposal(proposed)
            summed = self._step.sum_shares(replica_step, taken.batch)
            sums, changes, finite = self._examine(summed)
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
        with tf.control_dependencies([state.attempted]):
            stop = tf.timestamp()
        norm = self._weight_norm(observe)
        figures = state.figures.stack()
        outputs = state.attempted, state.finite, figures, stop, state.details, norm
        return outputs, left

    def _with_proposal(self, proposed: tf.Tensor) -> ReplicaStep:
        """The replica's step, its shares carrying what this process proposes."""

        def step(batch: Batch) -> Shares:
            shares = self._replica_step(batch)
            return shares._replace(sums={**shares.sums, **proposal(proposed)})

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
            lambda shares, closely: self._details.pack(update.observe(shares, closely))
        )
        shares = self._step.first(summed)
        closely = observe >= int(Observe.CLOSELY)
        return tf.cond(
            observe >= int(Observe.NORMS),
            lambda: look(shares, closely),
            lambda: details,
            name="look",
        )

    def _weight_norm(self, observe: tf.Tensor) -> tf.Tensor:
        """After the last step, if it was to be observed.

        Weights on other tasks that a step only might look at cost every step messages:
        eight of thirteen for four weights on a parameter server.
        """
        update = self._update
        if update is None:
            return tf.zeros([], tf.float64)
        return tf.cond(
            observe >= int(Observe.NORMS),
            lambda: tf.cast(update.weight_norm(), tf.float64),
            lambda: tf.zeros([], tf.float64),
        )

    def _examine(
        self, summed: Any
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """The sums of a step, the totals of what it changes, whether all are finite."""
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
    """What is carried from one step of the loop to the next."""

    attempted: tf.Tensor
    finite: tf.Tensor
    figures: tf.TensorArray
    details: tf.Tensor


# The number of packed values is known once the step has been traced.
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
    """A function that stays one operation in the graph of who calls it.

    TensorFlow visits every operation of a branch that is not taken, to say so to the
    next: looking at a step was 400 of them, 14 of 148 microseconds of each step of a
    5-10-2 network.
    """
    return tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )


@_apart
def _first_not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """The position of the first that is not finite, or NOTHING, as float64."""
    places = tf.where(~tf.math.is_finite(numbers))[:, 0]
    first = tf.concat([places, [NOTHING]], axis=0)[0]
    return tf.cast(first, tf.float64)


# Of `loop_arguments`.
_ARGUMENTS = (
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([len(dataclasses.fields(Agreed))], tf.float64),
)


def loop_arguments(
    num_steps: int, observe: Observe, proposed: Agreed
) -> tuple[tf.Tensor, ...]:
    """As tensors: a Python number would be traced anew for each value."""
    return (
        tf.constant(num_steps, tf.int32),
        tf.constant(int(observe), tf.int32),
        tf.constant(dataclasses.astuple(proposed), tf.float64),
    )
