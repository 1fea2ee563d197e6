"""The contract between a distribution strategy and everything else.

A strategy says where variables live, how a global batch is divided among
replicas, and how their shares are summed. It knows nothing about models,
losses, optimizers or files.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from strategies.common.types import GlobalBatches, Read, ReplicaStep, RunSteps, Update

if TYPE_CHECKING:
    import tensorflow as tf

    from strategies.cluster.spec import Cluster
    from strategies.config import StrategyConfig


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
      splits_model: its devices share the layers of one model, in stages.
      max_replicas: the most replicas it can have, or None for no limit.
      roles: the jobs its cluster consists of; empty for one process.
      optional_roles: jobs that it may have besides.
      serving_roles: jobs whose tasks only lend themselves to the chief.
      updates: what --update takes, the default first; empty if there is no choice.
      takes_streams: batches are asked for in the order of their steps, each once, so
        that they may come from a stream.
      exchange: how replicas bring their gradients together: in one_place; around a
        ring; at servers, which weights are read from; or none, if they do not.
      averages: what --average takes, the default first: what an update, if it is
        synchronous, averages over replicas; empty if there is nothing to average.
      own_settings: names of the settings of `StrategyConfig` that only strategies which
        name them here make use of.
      summary: one sentence for the table of strategies.
    """

    synchronous: bool
    multi_process: bool
    matches_one_device: bool
    splits_model: bool = False
    max_replicas: int | None = None
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    serving_roles: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    takes_streams: bool = False
    exchange: str = "none"
    averages: tuple[str, ...] = ("gradients",)
    own_settings: tuple[str, ...] = ()
    summary: str = ""


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
    # Where weights are on other tasks: how a replica reads them. None: each by itself,
    # as TensorFlow does it.
    read: Read | None = None

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
        """The device of each replica, such as `/device:CPU:0`; or of each stage."""

    @property
    def num_replicas(self) -> int:
        return 1 if self.traits.splits_model else len(self.devices)

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
        """Bytes a replica sends for one update; None if there is nothing to send.

        Args:
          gradient_bytes: size of its gradient; where the model is split, of what one
            stage computes for another from a global batch.
        """

    def replica_state(self) -> Sequence[tf.Variable]:
        """What replicas hold besides the variables made in `scope`.

        A checkpoint keeps it, so that the same strategy goes on exactly; another one
        goes on without it.
        """
        return ()

    def synchronize(self) -> None:
        """Waits until every scheduled step is applied."""

    def settle(self) -> None:
        """Makes the variables of every process the model that is to be looked at.

        Where processes train copies of their own, that is the mean, and the next call
        of `RunSteps` gives each its own back. All have to call it after the same step,
        before they evaluate, save or read the model.
        """

    def share_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every process the chief's values of variables it has copies of.

        All processes have to call it, with the same variables, and none returns
        before all have; with no variables it is a barrier. They may come to it at
        very different times, unlike to a step.
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
