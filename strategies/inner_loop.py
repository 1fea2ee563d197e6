"""The inner of the two loops: many steps inside the runtime for one call from Python.

Synchronous strategies differ in how the shares of one step are computed and
summed and in where the update runs. The loop around that is the same, and here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.base import Batch, Observe, Shares, StepResults, Update


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a synchronous strategy, in parts.

    The type of what is summed is the strategy's own: plain shares, or values
    that exist once for every replica.

    Attributes:
      sum_shares: computes every replica's shares of a batch and sums them.
      apply: runs the update on the sum, in the right context.
      first: the sum as the first replica sees it, as plain tensors.
    """

    sum_shares: Callable[[Batch], Any]
    apply: Callable[[Update, Any], None]
    first: Callable[[Any], Shares]


class InnerLoop:
    """Runs a step repeatedly inside one `tf.function`. Satisfies `RunSteps`.

    If any sum of a step (its loss among them) is not finite, its update is not
    applied and the loop ends.
    """

    def __init__(self, step: Step, update: Update | None):
        self._step = step
        self._update = update
        self._sums = _Packing()
        self._details = _Packing()
        self._function = tf.function(self._run, autograph=False)

    def trace(self, batches: Any) -> tf.Graph:
        """Traces the loop without running a step, and returns its graph."""
        return self._function.get_concrete_function(
            batches, *_arguments(0, Observe.NOT)
        ).graph

    def num_traces(self) -> int:
        return self._function.experimental_get_tracing_count()

    def __call__(
        self, batches: Any, num_steps: int, observe: Observe = Observe.NOT
    ) -> _Results:
        outputs = self._function(batches, *_arguments(num_steps, observe))
        return _Results(outputs, self._sums, self._details if observe else None)

    def _run(
        self, batches: Any, num_steps: tf.Tensor, observe: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        def proceed(attempted, finite, *_):  # type: ignore[no-untyped-def]
            return finite & (attempted < num_steps)

        def body(attempted, finite, sums, starts, waits, details):  # type: ignore[no-untyped-def]
            batch, start, wait = _timed_next(batches)
            summed = self._step.sum_shares(batch)
            packed = self._sums.pack(self._step.first(summed).sums)
            finite = tf.reduce_all(tf.math.is_finite(packed))
            is_last = tf.equal(attempted, num_steps - 1)
            details = self._look(summed, tf.where(is_last, observe, 0), details)
            self._apply_if(finite, summed)
            return (
                attempted + 1,
                finite,
                sums.write(attempted, packed),
                starts.write(attempted, start),
                waits.write(attempted, wait),
                details,
            )

        def per_step(shape):  # type: ignore[no-untyped-def]
            return tf.TensorArray(
                tf.float64, size=0, dynamic_size=True, element_shape=shape
            )

        start = tf.zeros((), tf.int32), tf.constant(True)
        arrays = per_step([None]), per_step([]), per_step([])
        attempted, finite, sums, starts, waits, details = tf.while_loop(
            proceed,
            body,
            (*start, *arrays, tf.zeros([0], tf.float64)),
            shape_invariants=(
                *(tf.TensorShape([]) for _ in start),
                *(tf.TensorShape(None) for _ in arrays),
                tf.TensorShape([None]),
            ),
        )
        with tf.control_dependencies([attempted]):
            stop = tf.timestamp()
        applied = attempted - tf.cast(~finite, tf.int32)
        return applied, sums.stack(), starts.stack(), stop, waits.stack(), details

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

    def _apply_if(self, finite: tf.Tensor, summed: Any) -> None:
        update = self._update
        if update is None:
            return

        def apply() -> tf.Tensor:
            self._step.apply(update, summed)
            return tf.constant(0)

        # The condition stands outside every replica's own function, because
        # MirroredStrategy cannot merge replicas inside a branch of one.
        tf.cond(finite, apply, lambda: tf.constant(0))


def _arguments(num_steps: int, observe: Observe) -> tuple[tf.Tensor, tf.Tensor]:
    """As tensors: a Python number would be traced anew for each value."""
    return tf.constant(num_steps, tf.int32), tf.constant(int(observe), tf.int32)


def _timed_next(batches: Any) -> tuple[Batch, tf.Tensor, tf.Tensor]:
    """The next batch, when it was asked for, and how many seconds it took to come.

    The clock's readings are held in their order by control dependencies, which
    cost nothing measurable (131.7 against 130.4 microseconds a step of a
    5-10-2 network).
    """
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        batch = next(batches)
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
class _Results:
    outputs: tuple[tf.Tensor, ...]
    sums: _Packing
    details: _Packing | None

    def fetch(self) -> StepResults:
        applied, sums, starts, stop, waits, details = (v.numpy() for v in self.outputs)
        return StepResults(
            applied_steps=int(applied),
            sums=self.sums.unpack(sums),
            step_seconds=np.diff(np.append(starts, stop)),
            input_seconds=waits,
            # A loop that ended early has not come to the step to be observed.
            details=self.details.unpack(details)
            if self.details and details.size
            else {},
        )
