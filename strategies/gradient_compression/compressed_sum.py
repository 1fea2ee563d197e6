"""Compressed sum of gradients over workers, with error feedback.

Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
2019: what a step has not sent is added to the next step's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.update_exchange import UpdateExchange, ring_factor
from strategies.common.errors import UsageError
from strategies.common.types import (
    Communication,
    LoopFunction,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.gradient_compression.choice import Compression
from strategies.gradient_compression.error_feedback import ReplicaErrors
from strategies.gradient_compression.method import Collectives
from strategies.gradient_compression.methods import method_of
from strategies.inner_loop.reduction import totals
from strategies.inner_loop.replicated import (
    OwnShard,
    all_reduce_packed,
    compile_replicated,
)
from strategies.inner_loop.results import OWN_TOTALS, in_a_vector
from strategies.inner_loop.steps_on_copies import StepsOnCopies


class CompressedSum(UpdateExchange):
    """Sum of all replicas' outputs, in which large dense gradients are approximate.

    Everything else is summed as it is: sparse gradients, gradients that the method does
    not make smaller, layer state, losses and metrics.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        worker: int,
        compression: Compression,
        update: Update,
    ):
        """Makes the variables of errors.

        Args:
          strategy: `MultiWorkerMirroredStrategy` with at least two replicas.
          worker: Rank of this process among the computing processes.
          compression: Way to compress gradients.
          update: Update that applies the sum.

        Raises:
          UsageError: The method makes no gradient of this model smaller.
        """
        self._strategy = strategy
        self._method = method = method_of(compression)
        self._update = update
        # By the index of the gradient, which is the same on every replica.
        specs = dict(enumerate(update.dense_gradients()))
        self._specs = {
            index: spec
            for index, spec in specs.items()
            if spec is not None and method.compresses(spec)
        }
        if not self._specs:
            raise UsageError(
                f"--gradient_compression={compression.setting} compresses no gradient "
                f"of this model: {method.remedy([s for s in specs.values() if s])}."
            )
        self._errors = ReplicaErrors(
            strategy,
            worker,
            [
                [tf.zeros(spec.shape, spec.dtype), *method.initial_state(spec, index)]
                for index, spec in self._specs.items()
            ],
            update,
        )

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        loop = compile_replicated(
            self._strategy, own_shard, self._all_reduce, replica_step, self._update
        )
        return StepsOnCopies(loop, self._errors.load, leave=lambda: None)

    def variables(self) -> Sequence[tf.Variable]:
        return self._errors.saved()

    def gather(self) -> None:
        self._errors.gather()

    def communication(self, gradient_bytes: int) -> Communication:
        num_replicas = self._strategy.num_replicas_in_sync
        specs = list(self._specs.values())
        whole = sum(spec.dtype.size * spec.shape.num_elements() for spec in specs)
        others = ring_factor(num_replicas) * (gradient_bytes - whole)
        sent = others + self._method.bytes_sent(specs, num_replicas)
        return Communication(
            algorithm=self._method.algorithm, bytes_per_step_per_replica=round(sent)
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
            return all_reduce_packed(context, outputs, None)
        # Error feedback: what earlier steps have not sent goes with this gradient.
        values = [gradients[index] + own[0] for index, own in places]
        others = _without(outputs, dict(places), values)
        collectives = Collectives(context)
        # Read before the assignments below, which the same graph has.
        state = [[tf.identity(v) for v in own[1:]] for _, own in places]
        reduced = self._method.reduce(collectives, values, state, others)
        summed = _with(reduced.others, [index for index, _ in places], reduced.sums)

        # The update is skipped by the same condition (`inner_loop.step.run_step`): the
        # errors of a skipped step may not be finite.
        numbers = in_a_vector(list(summed.sums.values()))

        def keep() -> tf.Tensor:
            for (_, own), error, further in zip(
                places, reduced.errors, reduced.state, strict=True
            ):
                for variable, value in zip(own, [error, *further], strict=True):
                    variable.assign(value)
            self._errors.mark_as_current()
            return tf.constant(True)

        is_finite = tf.reduce_all(tf.math.is_finite(numbers))
        tf.cond(is_finite, keep, lambda: tf.constant(False), name="keep_errors")
        return summed


def _without(
    outputs: ReplicaOutputs, places: dict[int, Any], values: Sequence[tf.Tensor]
) -> ReplicaOutputs:
    """Returns outputs without some gradients, with a sum that says if all are finite.

    Args:
      outputs: Outputs of one replica.
      places: Indices of the gradients to leave out.
      values: Values that are sent in their place.
    """
    whole = list(outputs.gradients)
    for index, value in zip(places, values, strict=True):
        whole[index] = value
    rest = [None if i in places else g for i, g in enumerate(outputs.gradients)]
    # Zero, or NaN if a value is not finite, which then reaches every replica: the
    # approximation may have left it out.
    own_totals = 0 * totals(outputs._replace(gradients=whole))
    sums = {**outputs.sums, OWN_TOTALS: own_totals}
    return outputs._replace(gradients=rest, sums=sums)


def _with(
    summed: ReplicaOutputs, places: Sequence[int], sums: Sequence[tf.Tensor]
) -> ReplicaOutputs:
    """Returns summed outputs with the gradients that `_without` has left out."""
    gradients = list(summed.gradients)
    for index, value in zip(places, sums, strict=True):
        gradients[index] = value
    whole = summed._replace(gradients=gradients)
    # Of the sum, too, which may overflow where no part of it does.
    changes = summed.sums[OWN_TOTALS] + totals(whole)
    return whole._replace(sums={**summed.sums, OWN_TOTALS: changes})
