"""Loop of a worker of synchronous parameter servers."""

from typing import Any

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import (
    Batch,
    GlobalBatches,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.inner_loop.results import INTERNAL, WORKER_SECONDS, time_after
from strategies.inner_loop.totals import totals_of
from strategies.ps.compressed_push import WholeGradients
from strategies.ps.gradient_queues import GradientQueues
from strategies.ps.step_tokens import FINISHED, NOT_STARTED, StepTokens
from strategies.ps.worker_input import opened

# Names of sums over workers, for the coordinator: rows and sizes of global batches, and
# versions of the weights.
NUM_ROWS = f"{INTERNAL}num_rows"
GLOBAL_SIZE = f"{INTERNAL}global_size"
VERSION = f"{INTERNAL}version"


class WorkerLoop:
    """Loop that computes one shard of each step, until there are no more steps."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        tokens: StepTokens,
        queues: GradientQueues,
        gradients: WholeGradients,
        replica_step: ReplicaFunction,
        update: Update,
    ):
        """Traces nothing yet."""
        self._strategy = strategy
        self._tokens = tokens
        self._queues = queues
        self._gradients = gradients
        self._replica_step = replica_step
        self._update = update
        self.batches: GlobalBatches | None = None
        self.graph: tf.Graph | None = None
        self.function = tf.function(self._run, autograph=False)

    def _run(
        self, batches: Any, shard_index: tf.Tensor, token_queue: tf.Tensor
    ) -> tf.Tensor:
        self.graph = tf.compat.v1.get_default_graph()
        cached_data = opened(batches)

        def wait(done: tf.Tensor, feedback: Any) -> tuple[tf.Tensor, Any]:
            with tf.control_dependencies([self._tokens.wait(token_queue)]):
                return tf.identity(done), feedback

        def body(done: tf.Tensor, feedback: Any) -> tuple[tf.Tensor, Any]:
            attempt = self._tokens.present()
            # `done` is the last computed attempt. The number decides, not the token: a
            # worker waits only if there is no newer attempt.
            return tf.cond(
                tf.equal(attempt, done),
                lambda: wait(done, feedback),
                lambda: tf.cond(
                    tf.equal(attempt, FINISHED),
                    lambda: (attempt, feedback),
                    lambda: self._take_part(
                        cached_data, shard_index, attempt, feedback
                    ),
                ),
            )

        done, feedback = tf.while_loop(
            lambda done, feedback: tf.not_equal(done, FINISHED),
            body,
            (tf.constant(NOT_STARTED, tf.int64), self._gradients.start()),
            parallel_iterations=1,
        )
        # No update follows the end of a loop, until the next one begins.
        with tf.control_dependencies([done]):
            version = self._update.applied_updates()
        with tf.control_dependencies(
            [self._gradients.store(feedback, version, shard_index)]
        ):
            return tf.identity(done)

    def _take_part(
        self,
        cached_data: Any,
        shard_index: tf.Tensor,
        attempt: tf.Tensor,
        feedback: Any,
    ) -> tuple[tf.Tensor, Any]:
        """Computes a shard on the present weights and sends it.

        Returns the attempt, and the error feedback.
        """
        # Weights are read after the attempt and after their version.
        with tf.control_dependencies([attempt]):
            version = self._update.applied_updates()
        with tf.control_dependencies([version]):
            # The request for a version is a message, which is not the worker's time.
            begin = tf.timestamp() if self._update.times_phases else version
        with tf.control_dependencies([begin]):
            batch = self._shard_of(cached_data, version, shard_index)
        if self._update.times_phases:
            arrived, batch = time_after(batch)
        with tf.control_dependencies([version]):
            outputs = self._strategy.run(self._replica_step, args=(batch,))
        self._check_state(outputs)
        counts = {
            NUM_ROWS: batch.num_rows,
            GLOBAL_SIZE: batch.global_size,
            VERSION: version,
        }
        sums = {name: tf.cast(count, tf.float64) for name, count in counts.items()}
        if self._update.times_phases:
            computed, outputs = time_after(outputs)
            # The workers' sum has a separate place for the seconds of each.
            is_own = tf.one_hot(shard_index, self._queues.num_workers, dtype=tf.float64)
            own = tf.stack([arrived - begin, computed - arrived])
            sums[WORKER_SECONDS] = tf.reshape(is_own[:, tf.newaxis] * own, [-1])
        outputs = outputs._replace(sums={**outputs.sums, **sums})
        outputs, feedback = self._gradients.compress(
            outputs, feedback, version, shard_index
        )
        sent = self._queues.send(attempt, shard_index, outputs)
        with tf.control_dependencies([sent]):
            return tf.identity(attempt), feedback

    def _shard_of(
        self, cached_data: Any, step: tf.Tensor, shard_index: tf.Tensor
    ) -> Batch:
        """Returns the shard of one worker; backup workers compute on later batches."""
        if self.batches is None:
            raise RuntimeError("the loop is traced before there is input")
        # A batch has N = num_required shards, because an update sums N of them. Worker
        # N + i takes shard i of the next batch.
        num_shards = self._queues.num_required
        ahead, own_shard = shard_index // num_shards, shard_index % num_shards
        batch = self.batches.at(cached_data, step + ahead, own_shard, num_shards)
        whole = self.batches.at(cached_data, step, 0, 1)
        # Each worker counts the whole batch by itself, which costs no message.
        totals = totals_of(self._replica_step, lambda count: count(whole).sums)
        if totals and self._queues.has_backup_workers:
            raise UsageError(
                "--backup_workers does not fit this loss: it is a mean over the values "
                "that masks or weights leave, of which the shards of a batch have "
                "different numbers, and an update may go on without any of them; use "
                "--backup_workers=0."
            )
        # The shard counts as a part of this step's batch, also if it is from a later
        # one, so that its gradient is divided by the same number of examples.
        return batch._replace(
            step=step, replica=shard_index, global_size=whole.global_size, totals=totals
        )

    def _check_state(self, outputs: ReplicaOutputs) -> None:
        state = tf.nest.flatten(outputs.state)
        whole_numbers = [value for value in state if not value.dtype.is_floating]
        if whole_numbers and self._queues.has_backup_workers:
            raise UsageError(
                "--backup_workers does not fit this model: one of its layers keeps "
                "whole numbers, which the first worker sends, and an update may go on "
                "without it; use --backup_workers=0."
            )
