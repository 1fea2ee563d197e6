"""Compressed sum of gradients over workers, with error feedback.

Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
2019: what a step has not sent is added to the next step's gradient.
"""

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.update_exchange import UpdateExchange, ring_factor
from strategies.common.types import (
    Communication,
    LoopFunction,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.gradient_compression.choice import Compression
from strategies.gradient_compression.error_feedback import ReplicaErrors
from strategies.gradient_compression.methods import method_for
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.reduction import (
    bytes_of,
    with_finite_checks_of_sum,
    with_gradients,
    with_own_finite_checks,
)
from strategies.inner_loop.replicated import OwnShard, compile_replicated
from strategies.inner_loop.results import OWN_FINITE_CHECKS, is_finite


class CompressedSum(UpdateExchange):
    """Sum of all replicas' outputs, in which large dense gradients are approximate.

    Everything else is summed as it is: sparse gradients, gradients that the method does
    not compress, layer state, losses and metrics.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rank: int,
        compression: Compression,
        update: Update,
    ):
        """Makes the variables of errors."""
        self._strategy = strategy
        self._update = update
        self._method, self._specs = method_for(compression, update)
        initial = self._method.initial_feedback(self._specs)
        self._errors = ReplicaErrors(strategy, rank, initial, update)

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        return compile_replicated(
            self._strategy,
            own_shard,
            self._all_reduce,
            replica_step,
            self._update,
            before_call=self._errors.load,
        )

    def variables(self) -> Sequence[tf.Variable]:
        return self._errors.saved()

    def gather(self) -> None:
        self._errors.gather()

    def communication(self, gradient_bytes: int) -> Communication:
        num_replicas = self._strategy.num_replicas_in_sync
        specs = list(self._specs.values())
        others = ring_factor(num_replicas) * (gradient_bytes - bytes_of(specs))
        sent = others + self._method.bytes_sent(specs, num_replicas)
        return Communication(
            algorithm=f"{self._method.name}, {self._method.collectives}",
            bytes_per_step_per_replica=round(sent),
        )

    def _all_reduce(
        self, context: tf.distribute.ReplicaContext, outputs: ReplicaOutputs
    ) -> ReplicaOutputs:
        """Returns the sum of all replicas' outputs, called on each replica."""
        gradients = list(outputs.gradients)
        # A step may have none, and an earlier update of it only some.
        places = [
            (index, own)
            for index, own in zip(self._specs, self._errors.of(context), strict=True)
            if index < len(gradients) and isinstance(gradients[index], tf.Tensor)
        ]
        if not places:
            return all_reduce_packed(context, outputs)
        # Error feedback: what earlier steps have not sent goes with this gradient.
        values = [gradients[index] + own[0] for index, own in places]
        indices = [index for index, _ in places]
        whole = dict(zip(indices, values, strict=True))
        others = with_own_finite_checks(outputs, whole)
        others = with_gradients(others, dict.fromkeys(indices))
        # Read before the assignments below, which the same graph has.
        state = [[tf.identity(v) for v in own[1:]] for _, own in places]
        reduced = self._method.reduce(context, values, state, others)
        sums = dict(zip(indices, reduced.sums, strict=True))
        summed = with_finite_checks_of_sum(with_gradients(reduced.others, sums))

        # The update is skipped by the same condition (`inner_loop.step.run_step`): the
        # errors of a skipped step may not be finite.

        def keep() -> tf.Tensor:
            for (_, own), error, further in zip(
                places, reduced.errors, reduced.state, strict=True
            ):
                for variable, value in zip(own, [error, *further], strict=True):
                    variable.assign(value)
            self._errors.mark_as_current()
            return tf.constant(True)

        applied = is_finite(summed.sums, summed.sums[OWN_FINITE_CHECKS])
        tf.cond(applied, keep, lambda: tf.constant(False), name="keep_errors")
        return summed
