"""Values that strategies, models and the training loop exchange.

This module does not import TensorFlow at run time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from strategies.collectives.buckets import Span
    from strategies.collectives.optimizer_shard import OptimizerShard


class Batch(NamedTuple):
    """Examples of one update: a whole global batch or one shard of it.

    Attributes:
      step: Index of the update that the examples belong to, int64 scalar.
      replica: Index of the shard, int64 scalar; 0 for a whole batch.
      global_size: Number of examples in the global batch, int64 scalar.
      num_rows: Number of rows of this shard that count, int64 scalar. An empty shard
        still carries one row, which must weigh nothing: a kernel without any row can
        end the process (see `strategies.inner_loop.sharding`).
      indices: Indices of the examples in the data set, int64 [rows].
      features: Tensor or structure of tensors [rows, ...].
      labels: Tensor or structure of tensors [rows, ...].
      totals: Scalars of the whole global batch by name, for steps that need some (see
        `strategies.inner_loop.totals`).
      state_size: Number of examples over which new layer state is averaged, int64
        scalar; empty if it is the global batch.
    """

    step: tf.Tensor
    replica: tf.Tensor
    global_size: tf.Tensor
    num_rows: tf.Tensor
    indices: tf.Tensor
    features: Any
    labels: Any
    totals: dict[str, Any] = {}  # noqa: RUF012
    # Not None, which a `tf.data.Dataset` and `tf.nest` take for a component.
    state_size: tf.Tensor | tuple[()] = ()


class ReplicaOutputs(NamedTuple):
    """Replica outputs for one update. Summation is the only reduction.

    Attributes:
      gradients: Gradients of (sum of this shard's losses / examples in the global
        batch), one for each trainable variable: a tensor or IndexedSlices, or None if
        the loss does not depend on the variable.
      state: This shard's parts of the new values of the non-trainable variables that
        training changes, a structure of tensors.
      sums: Named scalars: numerators and denominators of losses and metrics. Without an
        update, also named tensors of counts.
      loss: This shard's sum of losses, divided by the examples in the global batch, a
        scalar that is not differentiated yet. It takes the place of the gradients where
        losses are averaged (`--average=losses`); None otherwise.
    """

    # Each entry is a part of a value of the global batch, not a mean over the shard, so
    # that sums over replicas need no weights even if shards differ in size.
    gradients: Sequence[Any]
    state: Any
    sums: Mapping[str, Any]
    loss: Any = None


class Update(Protocol):
    """Update of the model from the sum of all replica outputs, once a step.

    Attributes:
      times_phases: True if steps report the times of their phases.
    """

    times_phases: bool

    def apply(self, outputs: ReplicaOutputs) -> None:
        """Clips the gradients, then changes weights and state."""

    # `apply` is `apply_prepared` of `prepare`. With asynchronous parameter servers a
    # worker runs the first half and the servers run the second.
    def prepare(self, outputs: ReplicaOutputs) -> ReplicaOutputs:
        """Clips gradients and adds up duplicate rows, the first half of `apply`."""

    def apply_prepared(self, prepared: ReplicaOutputs) -> None:
        """Changes weights and state, the second half of `apply`; on any task."""

    def adapt_loss_scale(
        self, sums: Mapping[str, tf.Tensor], is_finite: tf.Tensor
    ) -> tf.Tensor | None:
        """Adapts the scale of the loss to the outcome of a step, once for all replicas.

        Args:
          sums: `ReplicaOutputs.sums` of the step, summed over replicas.
          is_finite: Bool scalar, true if the step was applied.

        Returns:
          Whether to compute the step once more on the same batch, because its
          gradients were too large for their type at the present scale of the loss, a
          bool scalar; None if losses are not scaled.
        """

    def increment_step(self) -> tf.Tensor:
        """Adds one to the number of applied updates, atomically, and returns it."""

    def applied_updates(self) -> tf.Tensor:
        """Returns the number of applied updates."""

    def counter_device(self) -> str:
        """Returns the device of the number of applied updates."""

    def devices(self) -> Sequence[str]:
        """Returns the device of each trainable variable, in the gradients' order."""

    def dense_gradients(self) -> Sequence[tf.TensorSpec | None]:
        """Returns shape and type of each gradient; None if it holds used rows only."""

    def gradients_of(self, loss: tf.Tensor) -> Sequence[Any]:
        """Returns gradients of a scalar, computed on the devices of its operations."""

    def shard(self, spans: Sequence[Span]) -> OptimizerShard:
        """Returns one worker's part of the update: at most one span of each weight."""

    def assign_layer_state(self, state: Any) -> None:
        """Changes the layers' state, from the sum of `ReplicaOutputs.state`."""

    def weights(self) -> Sequence[tf.Variable]:
        """Returns the floating-point weights and state that an update changes."""

    def trainable_weights(self) -> Sequence[tf.Variable]:
        """Returns the trainable variables, in the gradients' order."""

    def optimizer_state(self) -> Sequence[tf.Variable]:
        """Returns the optimizer's floating-point variables, such as momentum."""

    def variables(self) -> Sequence[tf.Variable]:
        """Returns all variables that an update and its counter change."""

    def observe(
        self, outputs: ReplicaOutputs, with_histograms: tf.Tensor
    ) -> Mapping[str, tf.Tensor]:
        """Returns small tensors that describe this update, such as norms.

        Args:
          outputs: Sum of the replica outputs.
          with_histograms: Bool scalar; true to spend time on histograms.
        """

    def weight_norm(self) -> tf.Tensor:
        """Returns the L2 norm of all trainable weights at this moment, a scalar."""


class SummaryLevel(enum.IntEnum):
    """Level of detail at which a step is observed."""

    # Each level includes the levels below it: code compares with >=.
    NONE = 0
    NORMS = 1
    HISTOGRAMS = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SyncedFlags:
    """Values that all processes agree on, carried along with every step's sum.

    Each process proposes its own values and all processes receive the mean, so that
    they run the same callbacks without an additional message.

    Attributes:
      stop_requested: Number above zero if any process was asked to stop.
      step_seconds: Duration of a step in seconds; zero if not known yet.
    """

    stop_requested: float = 0.0
    step_seconds: float = 0.0


class StepPhases(NamedTuple):
    """Times of steps by the clock of the task that ran them, float64 [attempted, ...].

    Attributes:
      start: Time of the request for the batch, in seconds.
      input: Wait for the batch, in seconds.
      prefetch: Wait for later batches, before the step ends, in seconds.
      stop: Time of the end of the step, in seconds.
      computed: Time at which each local replica had all its outputs, in seconds,
        [attempted, local replicas]; None unless steps report their phases.
      reduced: Time at which the sum over replicas was complete, in seconds; None unless
        steps report their phases.
      worker_seconds: Seconds in which each worker waited for its examples and computed,
        [attempted, 2 x workers]; None if the task itself computes.
    """

    start: np.ndarray
    input: np.ndarray
    prefetch: np.ndarray
    stop: np.ndarray
    computed: np.ndarray | None = None
    reduced: np.ndarray | None = None
    worker_seconds: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepResults:
    """Results of a number of consecutive steps.

    Attributes:
      applied_steps: Number of applied updates; fewer than requested if a loss, a
        gradient or new layer state was not finite.
      sums: Sums over replicas of each entry of `ReplicaOutputs.sums`, one row for each
        step, float64 [attempted, ...].
      step_seconds: Duration of each step with its input, float64 [attempted].
      input_seconds: Part of `step_seconds` spent waiting for input, float64
        [attempted].
      details: Result of `Update.observe` for the last step; empty unless requested.
      agreed: Mean over replicas of their processes' `SyncedFlags`.
      attempted_steps: Number of updates begun, with the updates that were begun again
        because their worker died.
      staleness: Number of other updates applied between reading the weights and
        applying each update, float64 [attempted]; None where there can be none.
      workers: Task or tower that computed each update, str [attempted]; None if all
        computed it.
      dropped_gradients: Number of gradients that arrived after their update was applied
        without them, float64 [attempted]; None where updates wait for all.
      stage_busy_seconds: Compute time of each stage of a model, float64 [attempted,
        stages]; None where the model is whole.
      first_not_finite: Index of the first tensor that was not finite in the step that
        was not applied, among the gradients followed by the tensors of layer state;
        None if there was no such tensor.
      pipeline_seconds: Time from the beginning of the first stage to the end of the
        last, float64 [attempted]; None where the model is whole.
      phases: Times within each step; None if its worker died before it sent them.
    """

    # Arrays have one row for each step with a result. `attempted_steps` can be larger:
    # a step of an asynchronous worker that died is begun twice.
    applied_steps: int
    sums: Mapping[str, np.ndarray]
    step_seconds: np.ndarray
    input_seconds: np.ndarray
    details: Mapping[str, np.ndarray]
    agreed: SyncedFlags
    attempted_steps: int
    staleness: np.ndarray | None = None
    workers: np.ndarray | None = None
    dropped_gradients: np.ndarray | None = None
    stage_busy_seconds: np.ndarray | None = None
    pipeline_seconds: np.ndarray | None = None
    first_not_finite: int | None = None
    phases: StepPhases | None = None


ReplicaFunction = Callable[[Batch], ReplicaOutputs]
Read = Callable[[Sequence["tf.Variable"]], list["tf.Tensor"]]


class SpanShape(NamedTuple):
    """Largest numbers of steps, and of rows of each step, in an element of a dataset.

    Attributes:
      num_steps: Number of steps.
      num_rows: Number of rows of a step.
      has_smaller_batches: True if steps of some elements have fewer rows.
    """

    num_steps: int
    num_rows: int
    has_smaller_batches: bool


class GlobalBatches(Protocol):
    """Global batches of a range of steps, whole or in shards."""

    @property
    def first_step(self) -> int:
        """Step of the first batch."""

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        """Returns one shard of every global batch, in order; shard 0 of 1 is all."""

    # A step waits for another thread once for each element, so that several steps in
    # one element save time (see `strategies.inner_loop.input`).
    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        """Returns the batches of `dataset`, one or several steps in each element.

        The steps of an element are the same for every shard.

        Returns:
          Batches whose every tensor is [steps, ...].
        """

    @property
    def largest_span(self) -> SpanShape | None:
        """Size that no element of `spans(0, 1)` exceeds; None if unknown."""

    @property
    def data(self) -> object:
        """Hashable content of `cached_data`, equal for other steps of a data set."""

    def cached_data(self) -> tf.data.Dataset:
        """Returns a dataset that repeats one element, from which `at` reads.

        A process that computes any step on request keeps this element on its machine.
        """

    def at(
        self,
        cached_data: Any,
        step: tf.Tensor,
        shard_index: tf.Tensor | int,
        num_shards: int,
    ) -> Batch:
        """Returns one shard of one step, as graph operations.

        Args:
          cached_data: Element of `cached_data()`.
          step: Index of the step, int64 scalar.
          shard_index: Index of the shard.
          num_shards: Number of shards of a global batch.
        """


@runtime_checkable
class StreamedBatches(GlobalBatches, Protocol):
    """Global batches that come one after the other and are not kept."""

    # Python reads the data of a program once; two readers would share its state.
    def spans_of_shards(
        self, shards: Sequence[int], num_shards: int
    ) -> tf.data.Dataset:
        """Returns tuples of the `spans` of several shards, which are read together."""

    def windows(self) -> Iterator[tuple[int, Any]]:
        """Yields numbers of steps, and tuples of tensors from which `at` reads them.

        The tensors of all windows have the same shapes.
        """


@runtime_checkable
class BoundedInput(Protocol):
    """Input of an inner loop that has the batches of a few steps at a time."""

    def steps_left(self) -> int:
        """Returns the largest number of steps that the next call may have."""


class LoopFunction(Protocol):
    """Function that runs steps inside the runtime."""

    def trace(self, batches: Any) -> tf.Graph:
        """Traces without running, so that tracing is measured separately."""

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        """Runs `num_steps` steps and observes the last of them."""

    def num_traces(self) -> int:
        """Returns the number of traces; above one, a shape or type has varied."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """Bytes that a replica sends for one update, by the algorithm, not measured."""

    algorithm: str
    bytes_per_step_per_replica: int
