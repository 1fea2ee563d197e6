"""What a worker of synchronous parameter servers does, for as many steps as come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.cluster.failure_detection import LOSSES
from strategies.common.errors import UsageError
from strategies.common.types import Batch, GlobalBatches, ReplicaStep, Shares, Update
from strategies.ps.gradient_queues import ShareQueues
from strategies.ps.step_tokens import NO_MORE, NOTHING_YET, Turns


class WorkerLoop:
    """Computes one share of each step, until there are no more steps."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        turns: Turns,
        queues: ShareQueues,
        num_required: int,
        replica_step: ReplicaStep,
        update: Update,
    ):
        """Traces nothing yet.

        Args:
          strategy: runs the step.
          turns: tells which attempt is under way.
          queues: takes the shares.
          num_required: shares in a global batch; workers beyond are backups.
          replica_step: computes a share.
          update: tells how many updates were applied.
        """
        self._strategy = strategy
        self._turns = turns
        self._queues = queues
        self._num_required = num_required
        self._replica_step = replica_step
        self._update = update
        self.batches: GlobalBatches | None = None
        self.graph: tf.Graph | None = None
        self.function = tf.function(self._run, autograph=False)

    def _run(self, residents: Any, share: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        self.graph = tf.compat.v1.get_default_graph()
        resident = next(residents)

        def wait(done: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([self._turns.wait(tokens)]):
                return tf.identity(done)

        def body(done: tf.Tensor) -> tf.Tensor:
            turn = self._turns.present()
            return tf.cond(
                tf.equal(turn, done),
                lambda: wait(done),
                lambda: tf.cond(
                    tf.equal(turn, NO_MORE),
                    lambda: turn,
                    lambda: self._take_part(resident, share, turn),
                ),
            )

        return tf.while_loop(
            lambda done: tf.not_equal(done, NO_MORE),
            body,
            [tf.constant(NOTHING_YET, tf.int64)],
            parallel_iterations=1,
        )

    def _take_part(self, resident: Any, share: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
        """Computes a share on the present weights, sends it, and returns the turn."""
        # Weights are read after the turn and the version they are said to be of.
        with tf.control_dependencies([turn]):
            version = self._update.applied_updates()
        with tf.control_dependencies([version]):
            batch = self._share_of(resident, version, share)
            shares = self._strategy.run(self._replica_step, args=(batch,))
        self._check_state(shares)
        counts = tf.stack([batch.num_rows, batch.global_size, version])
        sent = self._queues.send(turn, share, shares, tf.cast(counts, tf.float64))
        with tf.control_dependencies([sent]):
            return tf.identity(turn)

    def _share_of(self, resident: Any, step: tf.Tensor, share: tf.Tensor) -> Batch:
        """The rows of one worker. Backup workers take theirs from the next batches.

        An update adds up N shares, so that is into how many a batch is divided.
        """
        if self.batches is None:
            raise RuntimeError("the loop is traced before there is input")
        ahead, own_share = share // self._num_required, share % self._num_required
        batch = self.batches.at(resident, step + ahead, own_share, self._num_required)
        whole = self.batches.at(resident, step, 0, 1).global_size
        return batch._replace(step=step, replica=share, global_size=whole)

    def _check_state(self, shares: Shares) -> None:
        state = tf.nest.flatten(shares.state)
        whole_numbers = [value for value in state if not value.dtype.is_floating]
        if whole_numbers and self._queues.leaves_out_late_ones:
            raise UsageError(
                "--backup_workers does not fit this model: one of its layers keeps "
                "whole numbers, which the first worker sends, and an update may go on "
                "without it; use --backup_workers=0."
            )


class WorkersUnderWay:
    """The workers' closures, once they are scheduled."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        give_up: Callable[[], None],
    ):
        """Begins to wait for them.

        Args:
          coordinator: has been given the closures.
          give_up: called when one of them fails, to end what waits for it.
        """
        self._coordinator = coordinator
        self._give_up = give_up
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self, patience_seconds: float | None) -> None:
        """Returns when all have ended, or are not waited for any longer.

        Raises:
          tf.errors.OpError: what made one of them fail.
        """
        self._thread.join(patience_seconds)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises what made one of them fail, if one did."""
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        try:
            self._coordinator.join()
        except BaseException as failure:
            self._failure = failure
            # If a server was lost, what waits there has ended already.
            with contextlib.suppress(*LOSSES):
                self._give_up()
