"""Step of a worker of asynchronous parameter servers."""

from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from strategies.common.types import (
    Batch,
    GlobalBatches,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.inner_loop.input import IndexedInput
from strategies.inner_loop.staleness import changes_of, reads_after
from strategies.inner_loop.step import Step
from strategies.ps.applied_steps import AppliedSteps
from strategies.ps.tensor_packing import sent
from strategies.ps.worker_input import opened

T = TypeVar("T")


class _NumberedBatch(NamedTuple):
    """Whole global batch of a step, and the number of the call of the inner loop."""

    batch: Batch
    call: tf.Tensor


class _StepMetadata(NamedTuple):
    """Metadata of one step.

    Attributes:
      version: Version of the weights that the step used, int64 scalar on the server
        that counts updates.
      call: Number of the call of the inner loop, int64 scalar.
      step: Index of the step, int64 scalar.
    """

    version: tf.Tensor
    call: tf.Tensor
    step: tf.Tensor


class AsynchronousWorker:
    """Worker that computes a global batch; the servers apply the gradient.

    If one server has all weights and their count, each step has two messages: the
    weights, and the worker's results. Servers cannot send anything to each other. With
    several servers the worker therefore sends each server all that it needs.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        applied_steps: AppliedSteps | None,
        attempts: tf.Variable,
        update: Update | None,
    ):
        """Traces nothing yet."""
        self._strategy = strategy
        self._applied_steps = applied_steps
        self._attempts = attempts
        self._server = None if update is None else _only_server(update)
        self._update = update
        self.batches: GlobalBatches | None = None

    def step(self) -> Step:
        """Returns the parts of a step for the inner loop."""
        return Step(
            self._compute if self._update is None else self._read_and_compute,
            first=lambda summed: summed[0],
            input=IndexedInput(self._batch_at, open=_with_cached_data),
            divides_batches=False,
            apply_if=self._apply_if,
        )

    def _batch_at(self, source: Any, index: tf.Tensor) -> _NumberedBatch:
        if self.batches is None:
            raise RuntimeError("steps are traced before there is input")
        cached_data, first_step, call = source
        step = first_step + tf.cast(index, tf.int64)
        return _NumberedBatch(self.batches.at(cached_data, step, 0, 1), call)

    def _compute(
        self, replica_step: ReplicaFunction, numbered: _NumberedBatch
    ) -> tuple[ReplicaOutputs, Any]:
        return self._strategy.run(replica_step, args=(numbered.batch,)), ()

    def _read_and_compute(
        self, replica_step: ReplicaFunction, numbered: _NumberedBatch
    ) -> tuple[ReplicaOutputs, _StepMetadata]:
        update = _require(self._update)
        # Counted before the version is read, so that a step of a dying worker counts.
        begun = self._attempts.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]), tf.device(update.counter_device()):
            version = tf.identity(update.applied_updates())
        batch, call = numbered
        outputs = self._compute_after(version, replica_step, batch)
        return outputs, _StepMetadata(version, call, batch.step)

    def _compute_after(
        self, version: tf.Tensor, replica_step: ReplicaFunction, batch: Batch
    ) -> ReplicaOutputs:
        """Returns the outputs of a batch at weights that are read after the version."""

        def compute(own: Batch) -> ReplicaOutputs:
            return self._strategy.run(replica_step, args=(own,))

        # With one server only the reads of weights wait, on that server. Otherwise the
        # version arrives here first, and the whole step waits for it.
        if self._server:
            with reads_after(version.op):
                return compute(batch)
        with tf.control_dependencies([version]):
            own = tf.nest.map_structure(tf.identity, batch)
        return compute(own)

    def _apply_if(
        self,
        update: Update,
        summed: tuple[ReplicaOutputs, _StepMetadata],
        finite: tf.Tensor,
    ) -> None:
        """Sends a step's outputs to the servers, which apply and record finite ones."""
        outputs, metadata = summed
        applied_steps = _require(self._applied_steps)
        outputs = update.prepare(outputs)
        encoded = applied_steps.encode(metadata.call, metadata.step, outputs.sums)
        # The sums travel with what is recorded.
        outputs = outputs._replace(sums={})
        if self._server:
            values = outputs, encoded, finite
            outputs, encoded, finite = _all_sent(values, self._server)
        else:
            gradients = sent(outputs.gradients, update.devices())
            outputs = outputs._replace(gradients=gradients)
            (encoded,) = sent([encoded], [update.counter_device()])
        record = applied_steps.record(encoded, metadata.version)

        def apply_and_write() -> None:
            self._strategy.run(update.apply_prepared, args=(outputs,))
            applied_steps.write(record)

        def apply() -> tf.Tensor:
            # Counted once the update is complete: an earlier count could include an
            # update that a dying worker never completes.
            with tf.control_dependencies([changes_of(apply_and_write)]):
                count = update.increment_step()
            applied_steps.commit(record, count)
            return tf.zeros([])

        # With several servers the learning rate is computed on the worker (no device).
        with tf.device(self._server):
            tf.cond(finite, apply, lambda: tf.zeros([]))


def _with_cached_data(arguments: Any) -> Any:
    """Returns the source of batches, taken out of its iterator once a closure."""
    cached_data, first_step, call = arguments
    return opened(cached_data), first_step, call


def _only_server(update: Update) -> str | None:
    """Returns the server that has all weights and their count, or None."""
    (device, *others) = {*update.devices(), update.counter_device()}
    return None if others else device


def _all_sent(values: Any, device: str) -> Any:
    """Returns a structure of values on another task, sent in one message."""
    flat = tf.nest.flatten(values)
    return tf.nest.pack_sequence_as(values, sent(flat, [device] * len(flat)))


def _require(value: T | None) -> T:
    if value is None:
        raise RuntimeError("a loop without an update applies nothing")
    return value
