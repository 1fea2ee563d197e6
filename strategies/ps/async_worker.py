"""What a worker of asynchronous parameter servers does in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import Batch, GlobalBatches, ReplicaStep, Shares, Update
from strategies.inner_loop.input import ByIndex
from strategies.inner_loop.loop import Step
from strategies.inner_loop.staleness import changes_of, reads_after
from strategies.ps.applied_steps import Journal
from strategies.ps.tensor_packing import sent


class _Task(NamedTuple):
    """What a step is given.

    Attributes:
      batch: the whole global batch.
      call: int64 scalar, the call of the inner loop that the step is part of.
    """

    batch: Batch
    call: tf.Tensor


class _Told(NamedTuple):
    """What is known of a step besides its shares.

    Attributes:
      version: int64 scalar on the server that counts: of the weights it began with.
      call: int64 scalar.
      step: int64 scalar.
    """

    version: tf.Tensor
    call: tf.Tensor
    step: tf.Tensor


class AsynchronousWorker:
    """Reads the weights, computes a global batch, and has servers apply the gradient.

    Where one server has all weights and their count, each step has two messages of its
    own, the weights and what the worker makes of them. Servers cannot send anything to
    each other: with several the worker tells each what it has to know.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        journal: Journal | None,
        attempts: tf.Variable,
        update: Update | None,
    ):
        """Traces nothing yet.

        Args:
          strategy: runs what is traced here.
          journal: keeps what is applied; None if nothing is.
          attempts: int64 scalar on a server, which counts every step that is begun.
          update: applies shares; None to only add up.
        """
        self._strategy = strategy
        self._journal = journal
        self._attempts = attempts
        self._server = None if update is None else _only_server(update)
        self._update = update
        self.batches: GlobalBatches | None = None

    def step(self) -> Step:
        """For the inner loop."""
        return Step(
            self._compute if self._update is None else self._read_and_compute,
            _reports_nothing,
            first=lambda summed: summed[0],
            input=ByIndex(self._batch_at, open=_with_resident),
            apply_if=self._apply_if,
        )

    def _batch_at(self, source: Any, index: tf.Tensor) -> _Task:
        if self.batches is None:
            raise RuntimeError("steps are traced before there is input")
        resident, first_step, call = source
        step = first_step + tf.cast(index, tf.int64)
        return _Task(self.batches.at(resident, step, 0, 1), call)

    def _compute(self, replica_step: ReplicaStep, task: _Task) -> tuple[Shares, Any]:
        return self._strategy.run(replica_step, args=(task.batch,)), ()

    def _read_and_compute(
        self, replica_step: ReplicaStep, task: _Task
    ) -> tuple[Shares, _Told]:
        update = _known(self._update)
        begun = self._attempts.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]), tf.device(update.counter_device()):
            version = tf.identity(update.applied_updates())
        shares = self._compute_after(version, replica_step, task.batch)
        return shares, _Told(version, task.call, task.batch.step)

    def _compute_after(
        self, version: tf.Tensor, replica_step: ReplicaStep, batch: Batch
    ) -> Shares:
        """Shares at weights that are read after the version they are said to be."""

        def compute(own: Batch) -> Shares:
            return self._strategy.run(replica_step, args=(own,))

        if self._server:
            with reads_after(version.op):
                return compute(batch)
        with tf.control_dependencies([version]):
            own = tf.nest.map_structure(tf.identity, batch)
        return compute(own)

    def _apply_if(
        self, update: Update, summed: tuple[Shares, _Told], finite: tf.Tensor
    ) -> None:
        """Sends a step's shares to the servers, which apply and keep them if finite."""
        shares, told = summed
        journal = _known(self._journal)
        shares = update.ready(shares)
        line = journal.line(told.call, told.step, shares.sums)
        shares = shares._replace(sums={})
        if self._server:
            shares, line, finite = _all_sent((shares, line, finite), self._server)
        else:
            gradients = sent(shares.gradients, update.devices())
            shares = shares._replace(gradients=gradients)
            (line,) = sent([line], [update.counter_device()])
        entry = journal.entry(line, told.version)

        def apply_and_note() -> None:
            self._strategy.run(update.change, args=(shares,))
            journal.note(entry)

        def apply() -> tf.Tensor:
            # Counted when all that it changes is changed: a count that came first could
            # be of an update that got lost.
            with tf.control_dependencies([changes_of(apply_and_note)]):
                count = update.count()
            journal.mark(entry, count)
            return tf.zeros([])

        # With several servers the rate is computed here.
        with tf.device(self._server):
            tf.cond(finite, apply, lambda: tf.zeros([]))


def _with_resident(arguments: Any) -> Any:
    """What batches are read from, taken once a closure and not in every step."""
    residents, first_step, call = arguments
    return next(residents), first_step, call


def _only_server(update: Update) -> str | None:
    """The server that has all weights and their count, if there is one."""
    (device, *others) = {*update.devices(), update.counter_device()}
    return None if others else device


def _all_sent(values: Any, device: str) -> Any:
    """A structure of values, on another task, in one message."""
    flat = tf.nest.flatten(values)
    return tf.nest.pack_sequence_as(values, sent(flat, [device] * len(flat)))


def _known(value: Any) -> Any:
    if value is None:
        raise RuntimeError("only updates are applied and kept in a journal")
    return value


def _reports_nothing(update: Update, summed: Any) -> Mapping[str, tf.Tensor]:
    raise RuntimeError("workers apply their steps by `Step.apply_if`")
