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

from strategies.base import (
    Agreed,
    Batch,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    StepResults,
    Update,
)
from strategies.shares import totals


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
      next_batch: takes the batch of a step out of the input, given how many steps
        of this call came before.
      reported: names of the values that `apply` returns.
      apply_if: applies the update if a bool scalar says so, where the weights are, and
        reports nothing; in place of `apply`.
    """

    sum_shares: Callable[[ReplicaStep, Any], Any]
    apply: Callable[[Update, Any], Mapping[str, tf.Tensor]]
    first: Callable[[Any], Shares]
    next_batch: Callable[[Any, tf.Tensor], Any] = lambda batches, index: next(batches)
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
        self._sums = _Packing()
        self._details = _Packing()
        self.function = tf.function(self._run, autograph=False)
        self.graph: tf.Graph | None = None

    def trace(self, batches: Any) -> tf.Graph:
        """Traces the loop without running a step, and returns its graph."""
        arguments = loop_arguments(0, Observe.NOT, Agreed())
        return self.function.get_concrete_function(batches, *arguments).graph

    def num_traces(self) -> int:
        return self.function.experimental_get_tracing_count()

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        arguments = loop_arguments(num_steps, observe, proposed or Agreed())
        return Ready(self.results(self.function(batches, *arguments), observe))

    def results(self, outputs: Sequence[Any], observe: Observe) -> StepResults:
        """What the steps of one call reported, from what `function` returned."""
        applied, packed, starts, stop, waits, details, norm = map(np.asarray, outputs)
        sums = self._sums.unpack(packed)
        return StepResults(
            applied_steps=int(applied),
            sums={
                name: values
                for name, values in sums.items()
                if not name.startswith(_NOT_METRICS)
            },
            staleness=sums.get("staleness"),
            late_gradients=sums.get("late_gradients"),
            stage_busy_seconds=_by_stage(sums),
            pipeline_seconds=sums.get(PIPELINE_SECONDS),
            attempted_steps=len(starts),
            first_not_finite=_last_or_nothing(sums.get(_NOT_FINITE)),
            agreed=_mean_of_last(sums),
            step_seconds=np.diff(np.append(starts, stop)),
            input_seconds=waits,
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
    ) -> tuple[tf.Tensor, ...]:
        self.graph = tf.compat.v1.get_default_graph()

        def proceed(*state: Any) -> tf.Tensor:
            return _State(*state).finite & (_State(*state).attempted < num_steps)

        def body(*loop_state: Any) -> _State:
            state = _State(*loop_state)
            batch, start, wait = _timed(
                lambda: self._step.next_batch(batches, state.attempted)
            )
            summed = self._step.sum_shares(self._with_proposal(proposed), batch)
            sums, changes, finite = self._examine(summed)
            is_last = tf.equal(state.attempted, num_steps - 1)
            details = self._look(summed, tf.where(is_last, observe, 0), state.details)
            reported = self._apply_if(finite, summed, changes)
            packed = self._sums.pack({**sums, **reported})
            return _State(
                attempted=state.attempted + 1,
                finite=finite,
                sums=state.sums.write(state.attempted, packed),
                starts=state.starts.write(state.attempted, start),
                waits=state.waits.write(state.attempted, wait),
                details=details,
            )

        state = _State(*tf.while_loop(proceed, body, _initial_state(), _INVARIANTS))
        with tf.control_dependencies([state.attempted]):
            stop = tf.timestamp()
        applied = state.attempted - tf.cast(~state.finite, tf.int32)
        sums, starts, waits = (
            array.stack() for array in (state.sums, state.starts, state.waits)
        )
        norm = self._weight_norm(observe)
        return applied, sums, starts, stop, waits, state.details, norm

    def _with_proposal(self, proposed: tf.Tensor) -> ReplicaStep:
        """The replica's step, its shares carrying what this process proposes."""

        def step(batch: Batch) -> Shares:
            shares = self._replica_step(batch)
            return shares._replace(sums={**shares.sums, **_proposal(proposed)})

        return step

    def _look(self, summed: Any, observe: tf.Tensor, details: tf.Tensor) -> tf.Tensor:
        update = self._update
        if update is None:
            return details
        shares = self._step.first(summed)
        closely = observe >= int(Observe.CLOSELY)
        return tf.cond(
            observe >= int(Observe.NORMS),
            lambda: self._details.pack(update.observe(shares, closely)),
            lambda: details,
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
        numbers = tf.concat([tf.stack(list(sums.values())), changes], axis=0)
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
            return {_NOT_FINITE: first}

        def apply() -> list[tf.Tensor]:
            reported = self._step.apply(update, summed)
            values = [tf.cast(reported[n], tf.float64) for n in self._step.reported]
            return [tf.constant(NOTHING, tf.float64), *values]

        def leave() -> list[tf.Tensor]:
            zeros = [tf.zeros([], tf.float64)] * len(self._step.reported)
            return [_first_not_finite(changes), *zeros]

        # The condition stands outside every replica's own function, because
        # MirroredStrategy cannot merge replicas inside a branch of one.
        names = (_NOT_FINITE, *self._step.reported)
        return dict(zip(names, tf.cond(finite, apply, leave), strict=True))


class _State(NamedTuple):
    """What is carried from one step of the loop to the next."""

    attempted: tf.Tensor
    finite: tf.Tensor
    sums: tf.TensorArray
    starts: tf.TensorArray
    waits: tf.TensorArray
    details: tf.Tensor


# The number of packed values is known once the step has been traced.
_INVARIANTS = _State(
    attempted=tf.TensorShape([]),
    finite=tf.TensorShape([]),
    sums=tf.TensorShape(None),
    starts=tf.TensorShape(None),
    waits=tf.TensorShape(None),
    details=tf.TensorShape([None]),
)


def _initial_state() -> _State:
    def per_step(shape: list[None]) -> tf.TensorArray:
        return tf.TensorArray(tf.float64, 0, dynamic_size=True, element_shape=shape)

    return _State(
        attempted=tf.constant(0),
        finite=tf.constant(True),
        sums=per_step([None]),
        starts=per_step([]),
        waits=per_step([]),
        details=tf.zeros([0], tf.float64),
    )


def _proposal(proposed: tf.Tensor) -> dict[str, tf.Tensor]:
    """What a replica adds to the sums, besides one to count the replicas."""
    names = [_AGREED + field.name for field in dataclasses.fields(Agreed)]
    values = dict(zip(names, tf.unstack(proposed), strict=True))
    return {**values, _REPLICAS: tf.ones([], tf.float64)}


# Figures of a step that travel with the sums of losses and metrics.
STAGE_BUSY_SECONDS = "stage_busy_seconds/"
PIPELINE_SECONDS = "pipeline_seconds"
_AGREED = "agreed/"
_REPLICAS = _AGREED + "replicas"
# Where replicas keep gradients of their own: `totals` of all of them, added up.
OWN_TOTALS = "own_totals"
# Which of the totals is the first that is not finite.
_NOT_FINITE = "not_finite"
NOTHING = -1
_NOT_METRICS = (
    *("staleness", "late_gradients", _NOT_FINITE),
    *(STAGE_BUSY_SECONDS, PIPELINE_SECONDS, _AGREED),
)


def _first_not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """The position of the first that is not finite, or NOTHING, as float64."""
    places = tf.where(~tf.math.is_finite(numbers))[:, 0]
    first = tf.concat([places, [NOTHING]], axis=0)[0]
    return tf.cast(first, tf.float64)


def loop_arguments(
    num_steps: int, observe: Observe, proposed: Agreed
) -> tuple[tf.Tensor, ...]:
    """As tensors: a Python number would be traced anew for each value."""
    return (
        tf.constant(num_steps, tf.int32),
        tf.constant(int(observe), tf.int32),
        tf.constant(dataclasses.astuple(proposed), tf.float64),
    )


def _timed(get_batch: Callable[[], Any]) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """A batch, when it was asked for, and how many seconds it took to come.

    The clock's readings are held in their order by control dependencies, which
    cost nothing measurable (131.7 against 130.4 microseconds a step of a
    5-10-2 network).
    """
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        batch = get_batch()
    with tf.control_dependencies(tf.nest.flatten(batch)):
        received = tf.timestamp()
    with tf.control_dependencies([received]):
        return tf.nest.map_structure(tf.identity, batch), start, received - start


class _Packing:
    """Named tensors in one float64 vector, so that a loop can carry them.

    Which names there are is known only once the step has been traced, too late
    to declare them as variables of a `tf.while_loop`; one vector needs no names.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}

    def pack(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        names = sorted(values)
        tensors = [tf.cast(values[name], tf.float64) for name in names]
        self._shapes = {
            name: tuple(tensor.shape)
            for name, tensor in zip(names, tensors, strict=True)
        }
        return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The named arrays, from a vector or from rows of them ([..., length])."""
        values = {}
        start = 0
        for name, shape in self._shapes.items():
            stop = start + int(np.prod(shape))
            part = vector[..., start:stop]
            values[name] = part.reshape((*vector.shape[:-1], *shape))
            start = stop
        return values


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """Results that need not be waited for. Satisfies `Pending`."""

    results: StepResults

    def fetch(self) -> StepResults:
        return self.results


def _by_stage(sums: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """[attempted, stages]; None where there are none."""
    num_stages = sum(name.startswith(STAGE_BUSY_SECONDS) for name in sums)
    if not num_stages:
        return None
    names = [f"{STAGE_BUSY_SECONDS}{index}" for index in range(num_stages)]
    return np.stack([sums[name] for name in names], axis=1)


def _last_or_nothing(positions: np.ndarray | None) -> int | None:
    """Of the last step, the only one that can have one."""
    if positions is None or not len(positions) or positions[-1] == NOTHING:
        return None
    return int(positions[-1])


def _mean_of_last(sums: Mapping[str, np.ndarray]) -> Agreed:
    """Over replicas, of the last step: the same on every process."""
    replicas = sums[_REPLICAS][-1:]
    if not len(replicas):
        return Agreed()
    names = [field.name for field in dataclasses.fields(Agreed)]
    return Agreed(
        **{name: float(sums[_AGREED + name][-1] / replicas[0]) for name in names}
    )
