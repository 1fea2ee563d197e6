"""Values that strategies, models and the training loop exchange.

Nothing here imports TensorFlow when it runs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


class Batch(NamedTuple):
    """Examples of one update: a whole global batch or a replica's rows of it.

    Attributes:
      step: int64 scalar, the index of the update these examples belong to.
      replica: int64 scalar, which share this is; 0 for a whole batch.
      global_size: int64 scalar, examples in the global batch.
      num_rows: int64 scalar, examples in this share that count. An empty share
        still carries one row, which must weigh nothing: a kernel that meets no
        row at all can end the process (see `strategies.inner_loop.sharding`).
      indices: int64 [rows], which examples of the data set these are.
      features: tensor or structure of tensors [rows, ...].
      labels: tensor or structure of tensors [rows, ...].
    """

    step: tf.Tensor
    replica: tf.Tensor
    global_size: tf.Tensor
    num_rows: tf.Tensor
    indices: tf.Tensor
    features: Any
    labels: Any


class Shares(NamedTuple):
    """What replicas contribute to one update. Adding shares up is the only reduction.

    Attributes:
      gradients: for each trainable variable its gradient of
        (sum of this share's losses / examples in the global batch), a tensor or
        IndexedSlices, or None where the loss does not depend on the variable.
      state: for each non-trainable variable that training changes, this
        share's part of the new value (a structure of tensors).
      sums: named scalars: numerators and denominators of losses and metrics. Where
        there is no update, also named tensors of counts.
      loss: where losses are averaged and not gradients (`--average=losses`), this
        share's sum of losses over the examples in the global batch, a scalar that is
        not differentiated yet; there are no gradients then. None otherwise.
    """

    gradients: Sequence[Any]
    state: Any
    sums: Mapping[str, Any]
    loss: Any = None


class Update(Protocol):
    """Turns the sum of all shares into new weights. Runs once a step, after the sum."""

    def apply(self, shares: Shares) -> None:
        """Clips, then changes weights and state."""

    def ready(self, shares: Shares) -> Shares:
        """The first half of `apply`, of numbers alone: clipped, each row once."""

    def change(self, ready: Shares) -> None:
        """The other half: changes weights and state. May run on another task."""

    def again(
        self, sums: Mapping[str, tf.Tensor], is_finite: tf.Tensor
    ) -> tf.Tensor | None:
        """Takes up whether a step was finite, once for all replicas.

        Args:
          sums: `Shares.sums` of the step, summed over replicas.
          is_finite: Whether the step was applied, a bool scalar.

        Returns:
          Whether to compute the step once more on the same batch, because its
          gradients were too large for their type at the present scale of the loss, a
          bool scalar; None if losses are not scaled.
        """

    def count(self) -> tf.Tensor:
        """Adds one to the number of applied updates, atomically, and returns it."""

    def applied_updates(self) -> tf.Tensor:
        """The number of applied updates."""

    def counter_device(self) -> str:
        """Where that number is kept."""

    def devices(self) -> Sequence[str]:
        """Where the variable of each gradient is, in the order of the gradients."""

    def gradients_of(self, loss: tf.Tensor) -> Sequence[Any]:
        """The gradients of a scalar, each operation's where the operation is."""

    def weights(self) -> Sequence[tf.Variable]:
        """What an update changes of the model: weights and state, in floating point."""

    def optimizer_state(self) -> Sequence[tf.Variable]:
        """What it keeps for each weight, such as momentum, in floating point."""

    def observe(self, shares: Shares, closely: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Small tensors that describe this update, such as norms.

        Args:
          shares: the sum over replicas.
          closely: bool scalar, whether to spend time on histograms.
        """

    def weight_norm(self) -> tf.Tensor:
        """The L2 norm of all trained weights as they are, a scalar."""


class Observe(enum.IntEnum):
    """How closely to look at a step."""

    NOT = 0
    NORMS = 1
    CLOSELY = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Agreed:
    """What processes decide together, carried along with every step's sum.

    Each process proposes its own values and all of them get the mean, so that
    processes take the same turns without a message of their own.

    Attributes:
      stop_requested: above zero if any process was asked to stop.
      step_seconds: how long a step takes; zero if not known yet.
    """

    stop_requested: float = 0.0
    step_seconds: float = 0.0


class Pending(Protocol):
    """Results of steps that may still be running."""

    def fetch(self) -> StepResults:
        """Waits for the steps and returns what they reported."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepResults:
    """What a number of consecutive steps reported.

    Attributes:
      applied_steps: updates applied; fewer than asked if a loss, a gradient or new
        layer state was not finite.
      sums: float64 [attempted, ...] each: those of `Shares.sums`, summed over
        replicas, step by step.
      step_seconds: float64 [attempted], duration of each step, input included.
      input_seconds: float64 [attempted], of them spent waiting for input.
      details: what `Update.observe` returned for the last step, if asked for.
      agreed: the mean over replicas of what their processes proposed.
      attempted_steps: updates begun, those included that were begun anew because
        their worker was lost.
      staleness: float64 [attempted], for each update how many others were applied
        between reading the weights and applying it; None where that cannot be.
      workers: str [attempted], which task or tower computed each update; None
        if all did.
      late_gradients: float64 [attempted], gradients that came when their update
        had been applied without them; None where updates wait for all.
      stage_busy_seconds: float64 [attempted, stages], how long each stage of a model
        computed; None where the model is whole.
      first_not_finite: which of the gradients, and after them of the tensors of layer
        state, was the first that was not finite in the step that was not applied;
        None if there was none.
      pipeline_seconds: float64 [attempted], from the beginning of the first stage to
        the end of the last; None where the model is whole.
    """

    applied_steps: int
    sums: Mapping[str, np.ndarray]
    step_seconds: np.ndarray
    input_seconds: np.ndarray
    details: Mapping[str, np.ndarray]
    agreed: Agreed
    attempted_steps: int
    staleness: np.ndarray | None = None
    workers: np.ndarray | None = None
    late_gradients: np.ndarray | None = None
    stage_busy_seconds: np.ndarray | None = None
    pipeline_seconds: np.ndarray | None = None
    first_not_finite: int | None = None


ReplicaStep = Callable[[Batch], Shares]
Read = Callable[[Sequence["tf.Variable"]], list["tf.Tensor"]]


class GlobalBatches(Protocol):
    """The global batches of a stretch of steps, whole or in shares."""

    @property
    def first_step(self) -> int:
        """The step of the first batch."""

    def dataset(self, share: int, num_shares: int) -> tf.data.Dataset:
        """One share's rows of every global batch, in order.

        Args:
          share: which share; `(0, 1)` gives whole global batches.
          num_shares: into how many a global batch is divided.
        """

    def spans(self, share: int, num_shares: int) -> tf.data.Dataset:
        """The same, those of one or several steps in an element.

        Which steps an element has does not depend on the share.

        Args:
          share: see `dataset`.
          num_shares: see `dataset`.

        Returns:
          Batches whose every tensor is [steps, ...].
        """

    @property
    def data(self) -> object:
        """What `resident` holds, hashable: the same for other steps of a data set."""

    def resident(self) -> tf.data.Dataset:
        """What `at` reads from, again and again the same element.

        A process that computes any step on request keeps this close by.
        """

    def at(
        self, resident: Any, step: tf.Tensor, share: tf.Tensor | int, num_shares: int
    ) -> Batch:
        """One share of one step, as graph operations.

        Args:
          resident: an element of `resident()`.
          step: int64 scalar.
          share: which share of the global batch.
          num_shares: into how many it is divided.
        """


class RunSteps(Protocol):
    """Runs steps inside the runtime."""

    def trace(self, batches: Any) -> tf.Graph:
        """Traces without running, so that its time can be told apart."""

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        """Starts `num_steps` steps and observes the last of them."""

    def num_traces(self) -> int:
        """How often it was traced. More than once means a shape or type varied."""
