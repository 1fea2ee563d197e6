"""One training step: gradients, their all-reduce, a check, the update, the metrics."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs, Update
from strategies.inner_loop.input import PrefetchedChunks, StepInput
from strategies.inner_loop.reduction import checks_of_sum
from strategies.inner_loop.results import (
    COMPUTED,
    NOT_FINITE,
    NOTHING,
    OWN_FINITE_CHECKS,
    REDUCED,
    flags_as_sums,
    is_finite,
    time_of,
)
from strategies.inner_loop.totals import totals_of
from strategies.inner_loop.updates_in_turn import apply_earlier


def _apply(update: Update, outputs: ReplicaOutputs) -> None:
    update.apply(outputs)
    update.increment_step()


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Parts of one step of a synchronous strategy.

    Each strategy chooses the type of its sums: plain replica outputs, or values that
    exist once for every replica.

    Attributes:
      all_reduce_gradients: Function that runs a replica step on every replica and sums
        the replica outputs.
      apply: Function that runs the update on the sum, in the right context, and returns
        the values to report, or None.
      first: Function that returns the sum on the first replica, as plain tensors.
      input: Source of the batches.
      divides_batches: True if a replica has a part of the global batch.
      reported: Names of the values that `apply` returns.
      apply_if: Function that applies the update where the weights are, if a bool scalar
        is true, and reports nothing. It replaces `apply`.
      whole: Function from the result of `first` to outputs with whole gradients, for a
        step that is observed.
      before_call: Function called before the steps of each call of the loop.
      after_call: Function called after them.
    """

    all_reduce_gradients: Callable[[ReplicaFunction, Any], Any]
    apply: Callable[[Update, Any], Mapping[str, tf.Tensor] | None] = _apply
    first: Callable[[Any], ReplicaOutputs] = lambda outputs: outputs
    input: StepInput = dataclasses.field(default_factory=PrefetchedChunks)
    divides_batches: bool = True
    reported: tuple[str, ...] = ()
    apply_if: Callable[[Update, Any, tf.Tensor], None] | None = None
    whole: Callable[[ReplicaOutputs], ReplicaOutputs] = lambda outputs: outputs
    before_call: Callable[[], None] = lambda: None
    after_call: Callable[[], None] = lambda: None


class StepOutputs(NamedTuple):
    """Outputs of one step.

    Attributes:
      metrics: Losses, metrics and other reported scalars, by name.
      details: Description of the update as a vector, float64; from `observe`.
      finite: Bool scalar, true if the loop may continue.
      num_done: Number of steps, int32: zero if the batch is to be computed again.
    """

    metrics: dict[str, tf.Tensor]
    details: tf.Tensor
    finite: tf.Tensor
    num_done: tf.Tensor | int


def run_step(
    step: Step,
    replica_step: ReplicaFunction,
    update: Update | None,
    batch: Any,
    local_flags: tf.Tensor,
    observe: Callable[[ReplicaOutputs], tf.Tensor],
) -> StepOutputs:
    """Computes one step, from a global batch to the changed weights.

    Args:
      step: Parts of the strategy's step.
      replica_step: Function that computes the outputs of one replica.
      update: Update of the model; None to only sum, as evaluation does.
      batch: Global batch, or the shards of it that this process computes.
      local_flags: Values of this process's `SyncedFlags`, float64 [fields].
      observe: Function that describes the summed outputs.
    """

    def summed_over_replicas(function: ReplicaFunction) -> tuple[Any, ReplicaOutputs]:
        reduced = step.all_reduce_gradients(function, batch)
        return reduced, step.first(reduced)

    # Most steps have one update. Apply all others, each on what the one before changed.
    earlier = apply_earlier(replica_step, update, summed_over_replicas, step.apply)

    # Compute the gradients of every replica's shard, and sum them over all replicas.
    # Flags that all processes must agree on travel in the same sum.
    whole_batch = {}
    if step.divides_batches:
        whole_batch = totals_of(
            earlier.last, lambda count: summed_over_replicas(count)[1].sums
        )

    clock = _StepClock(update is not None and update.times_phases)

    def compute_gradients(shard: Batch) -> ReplicaOutputs:
        if whole_batch:
            shard = shard._replace(totals=whole_batch)
        outputs = earlier.last(shard)
        clock.computed(outputs)
        return outputs._replace(sums={**outputs.sums, **flags_as_sums(local_flags)})

    reduced, summed = summed_over_replicas(compute_gradients)

    metrics = dict(summed.sums)
    details = observe(earlier.with_all_gradients(summed))
    if update is None:
        return StepOutputs(metrics, details, tf.constant(True), num_done=1)

    # Check that what trains is finite.
    checks = checks_of_sum(summed)
    metrics.pop(OWN_FINITE_CHECKS, None)
    finite = is_finite(metrics, checks) & earlier.finite
    finite = clock.reduced(summed, finite)

    # Apply the update once, to the sum, if everything is finite.
    apply_if = step.apply_if
    if apply_if is not None:
        apply_if(update, reduced, finite)

    def apply() -> list[tf.Tensor]:
        reported = {} if apply_if else step.apply(update, reduced) or {}
        values = [tf.cast(reported[name], tf.float64) for name in step.reported]
        return [tf.constant(NOTHING, tf.float64), *values]

    def skip() -> list[tf.Tensor]:
        zeros = [tf.zeros([], tf.float64)] * len(step.reported)
        return [_first_not_finite(checks), *zeros]

    # The condition stands outside every replica's own function, because
    # MirroredStrategy cannot merge replicas inside a branch of one.
    reported = tf.cond(finite, apply, skip, name="update")
    applied = dict(zip((NOT_FINITE, *step.reported), reported, strict=True))

    # Return the metrics, and whether to compute the same batch again, because its
    # gradients were too large for their type at the present scale of the loss.
    again = update.adapt_loss_scale(metrics, finite)
    metrics |= applied | clock.times
    if again is None:
        return StepOutputs(metrics, details, finite, num_done=1)
    return StepOutputs(metrics, details, finite | again, 1 - tf.cast(again, tf.int32))


class _StepClock:
    """Times within a step, if they are wanted."""

    def __init__(self, is_wanted: bool):
        self._is_wanted = is_wanted
        self._computed: list[tf.Tensor] = []
        self.times: dict[str, tf.Tensor] = {}

    def computed(self, outputs: ReplicaOutputs) -> None:
        """Reads the clock when a replica has its outputs."""
        # Not one of the sums: more values would change in which order others are added.
        if self._is_wanted:
            # Gradients are the last outputs, and few to wait for.
            self._computed.append(time_of(outputs.gradients))

    def reduced(self, summed: ReplicaOutputs, finite: tf.Tensor) -> tf.Tensor:
        """Reads the clock when the sum is there, and returns `finite` after that."""
        if not self._is_wanted:
            return finite
        now = time_of(summed.gradients)
        self.times = {COMPUTED: tf.stack(self._computed), REDUCED: now}
        # The update waits for the condition, so that it begins after the clock is read.
        with tf.control_dependencies([now]):
            return tf.identity(finite)


def not_inlined(function: Callable[..., Any]) -> Any:
    """Returns a function that stays one operation in the graph of its caller."""
    # TensorFlow visits every operation of a branch that is not taken, to mark the next
    # one as dead. Observing a step had 400 operations, which took 14 of the 148
    # microseconds of each step of a 5-10-2 network.
    return tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )


@not_inlined
def _first_not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """Returns the index of the first number that is not finite, or NOTHING, float64."""
    bad = ~tf.math.is_finite(numbers)
    # The first of equal ones.
    first = tf.argmax(tf.concat([tf.cast(bad, tf.int32), [0]], axis=0))
    return tf.cast(tf.where(tf.reduce_any(bad), first, NOTHING), tf.float64)
