"""Updates that are divided between workers: ZeRO, stage 1.

Every worker has all weights, and computes the gradients of its shard of the global
batch. It receives the sum of one part of them, has the optimizer's state of that part
alone, and updates that part of the weights; then all workers receive all parts
(Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, 2020, https://arxiv.org/abs/1910.02054, section 5.1). As many bytes are
sent as in an all-reduce, which consists of the same two halves.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.collectives.buckets import Bucket, unpack_part
from strategies.collectives.optimizer_shard import OptimizerShard
from strategies.collectives.update_exchange import (
    WIRE_TYPES,
    UpdateExchange,
    ring_factor,
)
from strategies.common.private_apis.collectives import exchange_rows, gather_by_key
from strategies.common.private_apis.variables import copies_of
from strategies.common.types import (
    Batch,
    Communication,
    LoopFunction,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.grouping import compute_in_order, grouped
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.reduction import bytes_of, finite_checks, total_of, widened
from strategies.inner_loop.replicated import OwnShard, on_first_replica
from strategies.inner_loop.results import INTERNAL, OWN_FINITE_CHECKS
from strategies.inner_loop.step import Step

# Name of the sum of squares of a worker's part of the gradients, among the sums.
_SQUARES = f"{INTERNAL}squares_of_parts"


class _Reduced(NamedTuple):
    """The sum of a step, as one worker has it.

    Attributes:
      outputs: Sum of all replica outputs; of gradients this worker's part of each
        bucket.
      squares: Sum of squares of all gradients, float64; zero unless it is needed.
    """

    outputs: ReplicaOutputs
    squares: tf.Tensor


class ShardedUpdate(UpdateExchange):
    """The parts of one worker, and the collectives that make them whole."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rank: int,
        update: Update,
        all_reduce_dtype: str,
    ):
        """Divides the update; its optimizer's variables stay whole until steps run."""
        self._strategy = strategy
        self._update = update
        self._all_reduce_dtype = all_reduce_dtype
        self._send_as = WIRE_TYPES[all_reduce_dtype]
        num_workers = strategy.num_replicas_in_sync
        # This process has one replica (`check_one_replica`), and so one copy of each.
        self._trained = [copies_of(v)[0] for v in update.trainable_weights()]
        shapes = [variable.shape for variable in self._trained]
        kinds = [(v.dtype, v.shape.num_elements()) for v in self._trained]
        self._buckets = [
            Bucket(
                indices,
                [shapes[index] for index in indices],
                self._trained[indices[0]].dtype,
                num_workers,
            )
            for indices in grouped(kinds)
        ]
        self._spans = [bucket.spans(rank) for bucket in self._buckets]
        self._shard = update.shard([span for spans in self._spans for span in spans])
        # Whether the loss depends on each weight; known when a step has been traced.
        self._is_used: list[bool] = []
        self._is_whole = True
        self._make_whole = tf.function(self._gather_state, autograph=False)
        self._read_weights = tf.function(self._shard.read_weights, autograph=False)

    def average(self) -> None:
        """Makes the optimizer's variables whole, so that they can be saved.

        All processes have to call this method at the same step, because it runs
        collectives. A second call at the same step does nothing.
        """
        # Equal on all processes: all have run the same steps since the last call.
        if not self._is_whole:
            self._make_whole()
            self._is_whole = True

    def optimizer_shard(self) -> OptimizerShard:
        return self._shard

    def communication(self, gradient_bytes: int) -> Communication:
        # Whole tables of embeddings, too, and weights in their own type.
        del gradient_bytes
        size = bytes_of(self._trained, self._send_as) + bytes_of(self._trained)
        factor = ring_factor(self._strategy.num_replicas_in_sync)
        return Communication(
            algorithm=f"reduce-scatter of gradients, {self._all_reduce_dtype}, "
            "all-gather of weights",
            bytes_per_step_per_replica=round(factor * size / 2),
        )

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        def all_reduce_gradients(replica_step: ReplicaFunction, batch: Any) -> Any:
            def on_each_replica() -> _Reduced:
                context = tf.distribute.get_replica_context()
                shard: Batch = own_shard(batch, context)
                return self._sum_parts(context, replica_step(shard))

            return self._strategy.run(on_each_replica)

        step = Step(
            all_reduce_gradients,
            self._apply,
            lambda reduced: self._local(reduced.outputs),
            whole=self._whole,
            before_call=self._take_slices,
        )
        return InnerLoop(step, replica_step, self._update)

    def _take_slices(self) -> None:
        """Keeps only this worker's slices of the optimizer's variables and weights."""
        if self._is_whole:
            self._shard.take()
            self._is_whole = False
        self._read_weights()

    def _local(self, values: Any) -> Any:
        """Returns what the one replica of this process has."""
        return on_first_replica(self._strategy, values)

    def _sum_parts(
        self, context: tf.distribute.ReplicaContext, outputs: ReplicaOutputs
    ) -> _Reduced:
        """Returns the sum of replica outputs; of gradients, this worker's parts."""
        zero = tf.zeros([], tf.float64)
        # Without gradients, for what a step needs of the whole batch in advance.
        if not outputs.gradients:
            return _Reduced(all_reduce_packed(context, outputs), zero)
        self._is_used = [gradient is not None for gradient in outputs.gradients]
        vectors = [self._pack(bucket, outputs.gradients) for bucket in self._buckets]
        compute_in_order(vectors)
        parts = [
            self._sum_of_part(context, bucket, vector)
            for bucket, vector in zip(self._buckets, vectors, strict=True)
        ]
        # Every worker checks its own part; the sum tells all whether any is not finite.
        # A weight that lies in the parts of two workers has the sum of both.
        own = [zero] * len(self._trained)
        for index, piece in self._slices_of(parts):
            own[index] = total_of(piece)
        squares = zero
        if self._shard.needs_norm:
            squares = tf.add_n(
                [
                    tf.cast(2 * tf.nn.l2_loss(widened(part)), tf.float64)
                    for part in parts
                ]
            )
        # These few numbers travel with losses and metrics, without a further message.
        sums = {**outputs.sums, OWN_FINITE_CHECKS: tf.stack(own), _SQUARES: squares}
        rest = ReplicaOutputs(gradients=[], state=outputs.state, sums=sums)
        rest = all_reduce_packed(context, rest)
        sums = dict(rest.sums)
        squares = sums.pop(_SQUARES)
        # As `finite_checks` of whole outputs: each gradient, then each tensor of state.
        checks = [sums[OWN_FINITE_CHECKS], finite_checks(rest)]
        sums[OWN_FINITE_CHECKS] = tf.concat(checks, axis=0)
        return _Reduced(rest._replace(gradients=parts, sums=sums), squares)

    def _slices_of(self, parts: Sequence[tf.Tensor]) -> Iterator[tuple[int, tf.Tensor]]:
        """Yields each slice of this worker's parts, and the position of its weight."""
        for part, spans in zip(parts, self._spans, strict=True):
            for span, piece in zip(spans, unpack_part(part, spans), strict=True):
                yield span.index, piece

    def _pack(self, bucket: Bucket, gradients: Sequence[Any]) -> tf.Tensor:
        """Returns the gradients of a bucket as a vector."""
        # Rows of sparse gradients lie in the parts of different workers, so that they
        # are sent as a whole table. A gradient that is missing is zero on all workers.
        dense = [
            tf.zeros(shape, self._trained[index].dtype)
            if gradients[index] is None
            else tf.convert_to_tensor(gradients[index])
            for index, shape in zip(bucket.indices, bucket.shapes, strict=True)
        ]
        return bucket.pack(dense)

    def _sum_of_part(
        self, context: tf.distribute.ReplicaContext, bucket: Bucket, vector: tf.Tensor
    ) -> tf.Tensor:
        """Returns this worker's part of the sum of a packed bucket, a vector."""
        # Costs nothing, which `compute_in_order` needs before the exchange.
        rows = tf.reshape(vector, [bucket.num_parts, bucket.part_size])
        sent = rows if self._send_as is None else tf.cast(rows, self._send_as)
        received = exchange_rows(context, sent)
        # One after the other, in the workers' order: equal to the last bit in all runs.
        return functools.reduce(operator.add, tf.unstack(tf.cast(received, rows.dtype)))

    def _apply(self, update: Update, reduced: _Reduced) -> None:
        local: _Reduced = self._local(reduced)
        # First, because a layer may have written weights that are trained.
        self._strategy.run(update.assign_layer_state, args=(reduced.outputs.state,))
        # None where the loss does not depend on a weight: with zeros, momentum and
        # weight decay would change it.
        gradients: list[tf.Tensor | None] = [None] * len(self._trained)
        for index, piece in self._slices_of(local.outputs.gradients):
            gradients[index] = piece if self._is_used[index] else None
        norm = tf.sqrt(local.squares) if self._shard.needs_norm else None
        slices = self._shard.apply(gradients, norm)
        for index, value in self._gathered(self._parts_of(slices)):
            self._trained[index].assign(value)

        def finish() -> None:
            self._shard.constrain(self._is_used)
            update.increment_step()

        self._strategy.run(finish)

    def _whole(self, summed: ReplicaOutputs) -> ReplicaOutputs:
        """Returns outputs with whole gradients, for a step that is observed."""
        # Norms and histograms need whole gradients, which no worker has.
        gradients: list[Any] = [None] * len(self._trained)
        for index, value in self._gathered(summed.gradients):
            gradients[index] = value if self._is_used[index] else None
        return summed._replace(gradients=gradients)

    def _parts_of(self, slices: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this worker's part of each bucket, from its slice of each weight."""
        return [
            bucket.pack_part(slices[span.index] for span in spans)
            for bucket, spans in zip(self._buckets, self._spans, strict=True)
        ]

    def _gathered(self, parts: Sequence[tf.Tensor]) -> Iterator[tuple[int, tf.Tensor]]:
        """Yields each whole tensor with its position, from this worker's parts."""

        def on_each_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            return [gather_by_key(context, part) for part in parts]

        vectors = self._local(self._strategy.run(on_each_replica))
        for bucket, vector in zip(self._buckets, vectors, strict=True):
            yield from zip(bucket.indices, bucket.unpack(vector), strict=True)

    def _gather_state(self) -> None:
        for whole, slices in zip(self._shard.whole, self._shard.state, strict=True):
            for index, value in self._gathered(self._parts_of(slices)):
                whole[index].assign(value)
