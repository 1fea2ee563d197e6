"""The interface of distribution strategies.

A strategy decides where variables live, how a global batch is divided among replicas,
and how replica outputs are summed. It knows nothing about models, losses, optimizers or
files.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from strategies.common.types import (
    Communication,
    GlobalBatches,
    LoopFunction,
    Read,
    ReplicaFunction,
    Update,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from strategies.cluster.spec import Cluster
    from strategies.collectives.optimizer_shard import OptimizerShard
    from strategies.config import StrategyConfig


# Function from the name of a task to the path of its shutdown file, on its machine.
ShutdownPath = Callable[[str], str]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Properties of a strategy that the rest of the program may rely on.

    The program's behavior depends on these properties, never on a strategy's name. They
    are literals in the strategy's class, because discovery reads them from the source
    without importing it.

    Attributes:
      synchronous: True if every update uses gradients of the current weights.
      multi_process: True if replicas are in more than one process.
      matches_one_device: True if the training equals that of one device to rounding.
      is_model_parallel: True if its devices share the layers of one model, in stages.
      max_replicas: Largest number of replicas; None for no limit.
      roles: Jobs of its cluster; empty for one process.
      optional_roles: Further jobs that its cluster may have.
      server_jobs: Jobs that only run a TensorFlow server for the chief.
      updates: Accepted values of --update, the default first; empty for no choice.
      supports_streaming: True if batches are read in the order of their steps, each
        once, so that they may come from a stream.
      applies_in_branches: True if an optimizer may change weights in a `tf.cond`, as
        Keras's optimizers with gradient accumulation do. Replicas of tf.distribute
        cannot be merged inside a branch of one of them.
      updates_in_turn: True if a step may have several updates, each of which needs the
        weights after the one before.
      sums_in_forward_pass: True if replicas sum within their forward pass where a layer
        asks for it, as `BatchNormalization(synchronized=True)` does.
      reuses_traces: True if a later training of the same model may run the traced loops
        of an earlier one.
      compiles_loop: True if XLA can compile its whole inner loop (`compile_loop`).
      exchange: Gradient exchange: `reduce_to_one`; `ring`; `all_gather`; `servers`,
        from which weights are read; or `none` without an exchange.
      averages: Accepted values of --average, the default first: the quantity that a
        synchronous update averages over replicas. Empty without a choice.
      own_settings: Settings of `StrategyConfig` that this strategy uses; strategies
        that do not list them refuse them.
      summary: One sentence for the table of strategies.
    """

    synchronous: bool
    multi_process: bool
    matches_one_device: bool
    is_model_parallel: bool = False
    max_replicas: int | None = None
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    server_jobs: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    supports_streaming: bool = False
    applies_in_branches: bool = False
    updates_in_turn: bool = False
    sums_in_forward_pass: bool = False
    reuses_traces: bool = False
    compiles_loop: bool = False
    exchange: str = "none"
    averages: tuple[str, ...] = ("gradients",)
    own_settings: tuple[str, ...] = ()
    summary: str = ""

    @property
    def loops_together(self) -> bool:
        """True if all processes run one training loop, and stop together."""
        return self.multi_process and not self.server_jobs

    @property
    def is_distributed(self) -> bool:
        """True if several devices train one model."""
        # The stages of a model are one replica on several devices.
        return self.max_replicas != 1 or self.is_model_parallel


class Strategy(abc.ABC):
    """Placement of variables, division of batches, and the sum of replica outputs.

    Implementations are final classes, one per file, and inherit only from this class.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    # Device of each replica, such as `/device:CPU:0`; or of each stage.
    devices: Sequence[str]
    # Target duration of one call of the inner loop, in seconds. It is long compared
    # with the Python code between two calls (about a millisecond), and short enough for
    # a prompt reaction to signals and a smooth progress bar.
    call_seconds: ClassVar[float] = 0.05
    # Fewest steps of a call, however long they take.
    fewest_steps_per_call: int = 1
    # Function that reads weights held by other tasks. None: TensorFlow reads each
    # variable separately.
    read: Read | None = None

    @classmethod
    @abc.abstractmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Strategy:
        """Creates the strategy and acquires its devices.

        Raises:
          UsageError: This machine or cluster cannot run the configuration.
        """

    @classmethod
    def check_devices(cls, config: StrategyConfig) -> None:
        """Checks devices as `create` does, without other processes; acquires nothing.

        Raises:
          UsageError: This machine lacks a device that the configuration needs.
        """

    @property
    def num_replicas(self) -> int:
        """Number of replicas; the stages of a split model are one together."""
        return 1 if self.traits.is_model_parallel else len(self.devices)

    @abc.abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """Returns a context in which variables are placed by this strategy."""

    @abc.abstractmethod
    def distribute(self, batches: GlobalBatches) -> Any:
        """Opens the input that `LoopFunction` takes its batches from."""

    @abc.abstractmethod
    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> LoopFunction:
        """Builds the loop function: replica outputs, their sum, and the update.

        Args:
          replica_step: Function that computes one replica's outputs.
          update: Update that is applied with their sum; None to sum only, as evaluation
            does.
        """

    def compile_loop(
        self, replica_step: ReplicaFunction, update: Update
    ) -> LoopFunction:
        """Builds the loop function as `compile` does, compiled by XLA as a whole.

        Only strategies with `Traits.compiles_loop` have it.
        """
        raise NotImplementedError(f"{self.name} has no compiled loop")

    @abc.abstractmethod
    def communication(self, gradient_bytes: int) -> Communication | None:
        """Returns what a replica sends for one update; None if it sends nothing.

        Args:
          gradient_bytes: Bytes of a replica's gradient. With a split model: bytes of
            activations that one stage sends to another for a global batch.
        """

    def replica_state(self) -> Sequence[tf.Variable]:
        """Returns variables of replicas in addition to those made in `scope`.

        A checkpoint keeps them, so that the same strategy resumes exactly. Another
        strategy resumes without them.
        """
        return ()

    def optimizer_shard(self) -> OptimizerShard | None:
        """Returns this process's part of the optimizer; None if it has the whole."""
        return None

    def average_replica_variables(self) -> None:
        """Makes replica variables equal, so that they can be evaluated or saved.

        If each process has a part of the optimizer, its variables become whole, until
        the next call of `LoopFunction`. If processes train separate copies, the
        variables become the mean of the copies, and the next call restores each
        process's copy. All processes have to call this method after the same step,
        before they evaluate, save or read the model.
        """

    def gather_replica_state(self) -> None:
        """Brings `replica_state` up to date in every process, before a checkpoint.

        The checkpoint is the chief's alone, and processes may have state of their own
        that no evaluation needs. All processes have to call this method after the same
        step.
        """

    def broadcast_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Broadcasts the chief's values of variables to all processes.

        All processes have to call this method with the same variables, and none returns
        before all have called it. Processes may arrive at very different times.
        """

    def barrier(self) -> None:
        """Waits until all processes have called this method, at any times."""

    def messages_of_all(self, message: bytes) -> Sequence[bytes]:
        """Returns the messages of all processes that train together, by their rank.

        All of them have to call this method, each with any message.
        """
        return [message]

    def wait_until_all_are_done(self) -> None:
        """Returns when no other process needs the messages of this one any more.

        All processes have to call this method after their last collective.
        """

    @classmethod
    def serve(
        cls, config: StrategyConfig, cluster: Cluster, shutdown_path: ShutdownPath
    ) -> int:
        """Runs a task of `Traits.server_jobs` to its shutdown; returns its exit code.

        Args:
          config: Configuration, the same as the chief's.
          cluster: Cluster as seen from this task.
          shutdown_path: Function that returns the path of a task's shutdown file.
        """
        raise NotImplementedError(f"{cls.name} has no tasks that only serve")

    def shutdown_servers(self, shutdown_path: ShutdownPath, exit_code: int) -> None:
        """Shuts down the servers of this process.

        Args:
          shutdown_path: Function that returns the path of a task's shutdown file.
          exit_code: Exit code of this process, which becomes theirs.
        """

    def pause(self) -> None:
        """Ends the other tasks' work for a training, and drops their data of it.

        Another training may follow.
        """

    def close(self) -> None:
        """Releases threads, processes and devices."""
