"""Steps with several updates, each of which sees what the one before has changed.

A generative adversarial network updates its discriminator, then its generator with the
gradient of the new discriminator. All replicas compute such a step once for each
update, and sum its gradients before the next one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs, Update
from strategies.inner_loop.reduction import checks_of_sum
from strategies.inner_loop.results import is_finite

# Values that variables had before each of the earlier updates of a step.
Former = Sequence[Sequence[tf.Tensor]]


@dataclasses.dataclass(frozen=True, slots=True)
class UpdatesInTurn:
    """A replica step that is computed several times. Satisfies `ReplicaFunction`.

    Attributes:
      num_passes: Number of times.
      compute: Function from the index of a pass, and the former values of what earlier
        ones have changed, to the replica step of the pass.
      changed: Function from the index of a pass to the variables that it changes.
    """

    num_passes: int
    compute: Callable[[int, Former], ReplicaFunction]
    changed: Callable[[int], Sequence[tf.Variable]]

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        raise RuntimeError("only the passes of this step can be computed")


@dataclasses.dataclass(frozen=True, slots=True)
class EarlierUpdates:
    """Result of all passes of a step but the last.

    Attributes:
      last: Replica step of the last pass.
      finite: Bool scalar, true if all gradients were finite.
      gradients: Sum of each pass's gradients.
    """

    last: ReplicaFunction
    finite: tf.Tensor | bool = True
    gradients: Sequence[Sequence[Any]] = ()

    def with_all_gradients(self, summed: ReplicaOutputs) -> ReplicaOutputs:
        """Returns the last pass's outputs with the gradients of all, to be observed."""
        passes = [summed.gradients, *self.gradients]
        first = [
            next((one for one in of_variable if one is not None), None)
            for of_variable in zip(*passes, strict=True)
        ]
        return summed._replace(gradients=first)


def apply_earlier(
    replica_step: ReplicaFunction,
    update: Update | None,
    all_reduce: Callable[[ReplicaFunction], tuple[Any, ReplicaOutputs]],
    apply: Callable[[Update, Any], Any],
) -> EarlierUpdates:
    """Computes and applies all updates of a step but the last.

    Args:
      replica_step: Step of one replica.
      update: Update of the model; None to only sum.
      all_reduce: Function that runs a replica step on every replica, and returns the
        strategy's sum and the same as plain tensors.
      apply: Function that applies the strategy's sum where the weights are.
    """
    if update is None or not isinstance(replica_step, UpdatesInTurn):
        return EarlierUpdates(replica_step)
    finite = tf.constant(True)
    former: list[Sequence[tf.Tensor]] = []
    gradients = []
    uncounted = _Uncounted(update)
    for index in range(replica_step.num_passes - 1):
        reduced, summed = all_reduce(replica_step.compute(index, former))
        finite &= is_finite(summed.sums, checks_of_sum(summed))
        # Read before the update below: TensorFlow orders reads and writes of a variable
        # as they are in the program.
        former.append([tf.identity(v) for v in replica_step.changed(index)])
        gradients.append(summed.gradients)

        def change(reduced: Any = reduced) -> tf.Tensor:
            apply(uncounted, reduced)
            return tf.constant(True)

        # An update that was applied cannot be taken back if a later one is not finite;
        # the run ends as diverged then, or goes back to a checkpoint.
        tf.cond(finite, change, lambda: tf.constant(False), name="earlier_update")
    last = replica_step.compute(replica_step.num_passes - 1, former)
    return EarlierUpdates(last, finite, gradients)


class _Uncounted:
    """An update that does not count as a step. Has what `Step.apply` calls."""

    def __init__(self, update: Update):
        self._update = update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)

    def increment_step(self) -> tf.Tensor:
        return self._update.applied_updates()
