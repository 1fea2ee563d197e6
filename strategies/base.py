"""The contract between a distribution strategy and everything else.

A strategy says where variables live, how a global batch is divided among
replicas, and how their shares are summed. It knows nothing about models,
losses, optimizers or files. This module does not import TensorFlow, so that a
configuration can be read and checked before TensorFlow is loaded.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from strategies import discovery
from strategies.settings import UsageError, check_settings, setting

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from strategies.cluster import Cluster


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What the rest of the program may assume about a strategy.

    Behaviour follows these, never a strategy's name. They are written as
    literals in the strategy's class, because discovery reads them from the
    source without importing it.

    Attributes:
      synchronous: every update uses gradients of the current weights.
      multi_process: replicas are in more than one process.
      matches_one_device: the training equals that of one device to rounding.
      max_replicas: the most replicas it can have, or None for no limit.
      roles: the jobs its cluster consists of; empty for one process.
      optional_roles: jobs that it may have besides.
      serving_roles: jobs whose tasks only lend themselves to the chief.
      updates: what --update takes, the default first; empty if there is no choice.
      summary: one sentence for the table of strategies.
    """

    synchronous: bool
    multi_process: bool
    matches_one_device: bool
    max_replicas: int | None = None
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    serving_roles: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    summary: str = ""


DEFAULT_NUM_WORKERS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyConfig:
    """Strategy and devices."""

    strategy: str = setting(
        "one_device",
        "How training is distributed.",
        choices=discovery.names,
    )
    num_replicas: int | None = setting(
        None,
        "Copies of the computation. Default: every GPU; without a GPU, as many "
        "logical CPU devices as the strategy wants.",
        minimum=1,
    )
    cross_device_reduction: str = setting(
        "auto",
        "How mirrored sums over devices: auto is nccl on several GPUs and "
        "one_device on CPUs.",
        choices=("auto", "nccl", "hierarchical", "one_device"),
    )

    num_workers: int | None = setting(
        None,
        "Worker processes of a strategy that has several. Default: 2.",
        minimum=1,
    )
    num_ps: int | None = setting(
        None,
        "Parameter server processes, of strategies that have them. Default: 1.",
        minimum=1,
    )
    update: str | None = setting(
        None,
        "sync waits for the gradients of all workers and applies their sum; async "
        "applies each as it comes. Default: the strategy's own.",
        choices=("sync", "async"),
    )
    backup_workers: int = setting(
        0,
        "Of the workers under --update=sync, how many an update does not wait for: "
        "the last to finish are dropped.",
        minimum=0,
    )
    collective_implementation: str = setting(
        "auto",
        "How multi_worker_mirrored sums: auto is nccl on GPUs and ring on CPUs.",
        choices=("auto", "ring", "nccl"),
    )
    all_reduce_dtype: str = setting(
        "as_is",
        "Type of gradients on the wire between processes; narrower ones halve the "
        "traffic and are no longer exactly the same training.",
        choices=("as_is", "bfloat16", "float16"),
    )
    peer_timeout_seconds: float = setting(
        10.0, "How long a silent peer is waited for within a step.", above=0
    )
    startup_timeout_seconds: float = setting(
        60.0, "How long a cluster may take to assemble.", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        most = discovery.traits(self.strategy).max_replicas
        if most is not None and (self.num_replicas or 1) > most:
            raise UsageError(
                f"--num_replicas={self.num_replicas} does not fit "
                f"--strategy={self.strategy}, which has at most {most}: lower it "
                "or choose another strategy."
            )
        self._check_update()

    @property
    def is_synchronous(self) -> bool:
        """Whether every update uses gradients of the current weights."""
        if self.update is not None:
            return self.update == "sync"
        return discovery.traits(self.strategy).synchronous

    @property
    def traits(self) -> Traits:
        """What the strategy declares, as it holds for this configuration."""
        declared = discovery.traits(self.strategy)
        if not declared.updates:
            return declared
        return dataclasses.replace(
            declared,
            synchronous=self.is_synchronous,
            matches_one_device=self.is_synchronous and not self.backup_workers,
        )

    def _check_update(self) -> None:
        accepted = discovery.traits(self.strategy).updates
        if self.update is not None and self.update not in accepted:
            raise UsageError(
                f"--update={self.update} does not fit --strategy={self.strategy}, "
                f"which takes {' or '.join(accepted) or 'no --update'}: leave it out, "
                "or choose another strategy."
            )
        if not self.backup_workers:
            return
        if self.update != "sync":
            raise UsageError(
                f"--backup_workers={self.backup_workers} needs a strategy that can "
                "leave gradients out, with --update=sync: add --update=sync to "
                "--strategy=parameter_server, or leave it out."
            )
        workers = self.num_workers or DEFAULT_NUM_WORKERS
        if self.backup_workers >= workers:
            raise UsageError(
                f"--backup_workers={self.backup_workers} of --num_workers={workers} "
                "leaves no worker to wait for: lower the one or raise the other."
            )


class Batch(NamedTuple):
    """Examples of one update: a whole global batch or a replica's rows of it.

    Attributes:
      step: int64 scalar, the index of the update these examples belong to.
      replica: int64 scalar, which share this is; 0 for a whole batch.
      global_size: int64 scalar, examples in the global batch.
      num_rows: int64 scalar, examples in this share that count. An empty share
        still carries one row, which must weigh nothing: a kernel that meets no
        row at all can end the process (see `strategies.batch`).
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
      sums: named scalars: numerators and denominators of losses and metrics.
    """

    gradients: Sequence[Any]
    state: Any
    sums: Mapping[str, Any]


class Update(Protocol):
    """Turns the sum of all shares into new weights. Runs once a step, after the sum."""

    def apply(self, shares: Shares) -> None:
        """Clips, then changes weights and state."""

    def count(self) -> tf.Tensor:
        """Adds one to the number of applied updates, atomically, and returns it."""

    def applied_updates(self) -> tf.Tensor:
        """The number of applied updates."""

    def devices(self) -> Sequence[str]:
        """Where the variable of each gradient is, in the order of the gradients."""

    def observe(self, shares: Shares, closely: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Small tensors that describe this update, such as norms.

        Args:
          shares: the sum over replicas.
          closely: bool scalar, whether to spend time on histograms.
        """


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
      applied_steps: updates applied; fewer than asked if a loss was not finite.
      sums: float64 [attempted] each: the named scalars of `Shares.sums`, summed
        over replicas, step by step.
      step_seconds: float64 [attempted], duration of each step, input included.
      input_seconds: float64 [attempted], of them spent waiting for input.
      details: what `Update.observe` returned for the last step, if asked for.
      agreed: the mean over replicas of what their processes proposed.
      attempted_steps: updates begun, those included that were begun anew because
        their worker was lost.
      staleness: float64 [attempted], for each update how many others were applied
        between reading the weights and applying it; None where that cannot be.
      workers: str [attempted], which task computed each update; None if all did.
      late_gradients: float64 [attempted], gradients that came when their update
        had been applied without them; None where updates wait for all.
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


ReplicaStep = Callable[[Batch], Shares]


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """What a replica sends for one update, from the algorithm, not measured."""

    algorithm: str
    bytes_per_step_per_replica: int


class Strategy(abc.ABC):
    """Where variables are, who computes which rows, and how shares are summed.

    Implementations are final classes, one a file, and inherit only from this.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    # How long a call of the inner loop should take: long enough that Python between
    # two calls (about a millisecond) is lost in it, short enough that signals and the
    # progress bar are attended to at once.
    call_seconds: ClassVar[float] = 0.05

    @classmethod
    @abc.abstractmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Strategy:
        """Takes its devices.

        Raises:
          UsageError: this machine or cluster cannot run the configuration.
        """

    @classmethod
    def check_devices(cls, config: StrategyConfig) -> None:
        """What of `create` needs no other process; takes nothing.

        Raises:
          UsageError: this machine lacks a device that the configuration needs.
        """

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[str]:
        """The device of each replica, such as `/device:CPU:0`."""

    @property
    def num_replicas(self) -> int:
        return len(self.devices)

    @abc.abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """Variables made inside live where this strategy wants them."""

    @abc.abstractmethod
    def distribute(self, batches: GlobalBatches) -> Any:
        """Opens the input: what `RunSteps` takes its batches from."""

    @abc.abstractmethod
    def compile(self, replica_step: ReplicaStep, update: Update | None) -> RunSteps:
        """Joins the two sides of a step around the sum of shares, which it owns.

        Args:
          replica_step: computes one replica's shares.
          update: applies their sum; None to only add up, as evaluation does.
        """

    @abc.abstractmethod
    def communication(self, gradient_bytes: int) -> Communication | None:
        """Bytes a replica sends for one update; None if there is nothing to send."""

    def synchronize(self) -> None:
        """Waits until every scheduled step is applied."""

    def share_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every process the chief's values of variables it has copies of.

        All processes have to call it, with the same variables, and none returns
        before all have; with no variables it is a barrier.
        """

    @classmethod
    def serve(cls, config: StrategyConfig, cluster: Cluster, ending: str) -> int:
        """Runs a task of `Traits.serving_roles` to its end; returns its exit code.

        Args:
          config: the chief's as well.
          cluster: whose task this is.
          ending: path of the file that `dismiss` writes, with {task} for its name.
        """
        raise NotImplementedError(f"{cls.name} has no tasks that only serve")

    def dismiss(self, ending: str, exit_code: int) -> None:
        """Tells the tasks that serve this process that they may end.

        Args:
          ending: path of a file on each task's machine, with {task} for its name.
          exit_code: that of this process, which becomes theirs.
        """

    def close(self) -> None:
        """Gives back threads, processes and devices."""
