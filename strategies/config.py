"""Settings of distribution strategies, without TensorFlow."""

import dataclasses
import functools
from typing import ClassVar

from strategies import registry
from strategies.base import Traits
from strategies.common.fields import UsedBy, check_settings, setting
from strategies.config_checks import CHECKS
from strategies.devices.parsing import DeviceChoice, parse_devices
from strategies.gradient_compression.choice import NONE, Compression, parse_compression
from strategies.processes import network_isolation

_DEFAULT_NUM_WORKERS = 2
_DEFAULT_SYNC_EVERY_STEPS = 10
_DEFAULT_MAX_RESTARTS = 3
# Learning rate and momentum. The DiLoCo paper chose the values of nesterov; those of
# sgd make it the mean of the replicas' weights.
_OUTER_DEFAULTS = {"sgd": (1.0, 0.0), "nesterov": (0.7, 0.9)}
# More tasks on one machine would not fit into its memory.
_MOST_TASKS = 1_000
_MOST_REPLICAS = 1_000_000

# Strategies that use some settings.
_OF_STAGES: UsedBy = {
    "strategy": registry.names_where(lambda traits: traits.is_model_parallel)
}
# With ballast, every strategy has a weight for each server.
_OF_SERVERS: UsedBy = {
    "strategy": registry.names_where(lambda traits: "ps" in traits.roles),
    "ballast": ("true",),
}
# Averages of parameters: the default of some strategies, and a choice of others.
_OF_AVERAGES: UsedBy = {
    "strategy": registry.names_where(
        lambda traits: traits.averages[:1] == ("parameters",)
    ),
    "average": ("parameters",),
}
_OF_OUTER_OPTIMIZERS: UsedBy = {"outer_optimizer": ("sgd", "nesterov")}


# Declares a setting of strategies of several processes.
_of_clusters = functools.partial(
    setting,
    used_by={"strategy": registry.names_where(lambda traits: traits.multi_process)},
)


def _of_those_that_name(name: str) -> UsedBy:
    return {
        "strategy": registry.names_where(lambda traits: name in traits.own_settings)
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyConfig:
    """Strategy and devices."""

    group: ClassVar[str] = "strategy"

    strategy: str = setting(
        "one_device",
        "How training is distributed.",
        choices=registry.names,
    )
    num_replicas: int | None = setting(
        None,
        "Copies of the computation. Default: every GPU; without a GPU, as many "
        "logical CPU devices as the strategy wants.",
        minimum=1,
        maximum=_MOST_REPLICAS,
    )
    devices: tuple[str, ...] | None = setting(
        None,
        "Devices of the replicas: GPUs by number, such as gpu:0,gpu:2, or cpu:4 for "
        "the CPU split into four. Default: as --num_replicas says.",
    )
    soft_placement: bool | None = setting(
        None,
        "Leave out --devices that do not exist, and use the CPU if none exists. "
        "--nosoft_placement: an operation that its device cannot run is an error. "
        "Default: such operations run elsewhere, and --devices must exist.",
    )
    cross_device_reduction: str = setting(
        "auto",
        "How mirrored sums over devices: auto is nccl on several GPUs and "
        "one_device on CPUs. hierarchical needs an even number of replicas.",
        choices=("auto", "nccl", "hierarchical", "one_device"),
        used_by=_of_those_that_name("cross_device_reduction"),
        has_flag=False,
    )

    update: str | None = setting(
        None,
        "sync waits for the gradients of all workers or towers and applies their "
        "sum; async applies each as it comes. Default: the strategy's own.",
        choices=("sync", "async"),
    )
    average: str | None = setting(
        None,
        "Quantity that is averaged over replicas. losses: one gradient of their mean "
        "(tower). parameters: the weights, every --sync_every_steps "
        "(parameter_averaging, multi_worker_mirrored). Default: the strategy's own.",
        choices=("gradients", "losses", "parameters"),
    )
    sync_every_steps: int | None = setting(
        None,
        "Steps that each replica takes by itself before parameters are averaged. "
        f"Default: {_DEFAULT_SYNC_EVERY_STEPS}.",
        minimum=1,
        used_by=_OF_AVERAGES,
    )
    average_optimizer_state: bool = setting(
        False,
        "Average what the optimizer keeps, such as momentum, together with the "
        "weights. Without, each replica keeps its own.",
        used_by=_OF_AVERAGES,
        has_flag=False,
    )
    outer_optimizer: str = setting(
        "none",
        "Optimizer that is applied at each average of parameters (DiLoCo). Its "
        "gradient is the last average minus the new mean. none: take the new mean.",
        choices=("none", "sgd", "nesterov"),
        used_by=_OF_AVERAGES,
    )
    outer_learning_rate: float | None = setting(
        None,
        "Learning rate of --outer_optimizer. Default: 1 with sgd, 0.7 with nesterov.",
        above=0,
        used_by=_OF_OUTER_OPTIMIZERS,
    )
    outer_momentum: float | None = setting(
        None,
        "Momentum of --outer_optimizer. Default: 0 with sgd, 0.9 with nesterov.",
        minimum=0,
        below=1,
        used_by=_OF_OUTER_OPTIMIZERS,
        has_flag=False,
    )
    outer_dtype: str = setting(
        "as_is",
        "Type in which changes of weights are sent to --outer_optimizer.",
        choices=("as_is", "bfloat16", "float16"),
        used_by=_OF_OUTER_OPTIMIZERS,
    )
    outer_fragments: int = setting(
        1,
        "Parts of about equal bytes into which the weights are divided. Each is "
        "averaged every --sync_every_steps, at other steps than the rest, so that "
        "fewer bytes are sent at a time.",
        minimum=1,
        used_by=_OF_OUTER_OPTIMIZERS,
    )
    gradient_reduction: str = setting(
        "mean",
        "Gradient of an update. mean: over the global batch. sum: of the replicas' "
        "means, N times larger with N replicas.",
        choices=("mean", "sum"),
        has_flag=False,
    )
    backup_workers: int = setting(
        0,
        "Number of workers that an update of --update=sync does not wait for: the "
        "gradients of the last ones to finish are dropped.",
        minimum=0,
        maximum=_MOST_TASKS,
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Micro-batches into which a replica divides its part of the global batch. They "
        "are computed one after another, so that memory need hold only one.",
        minimum=1,
        maximum=1_000_000,
    )
    all_reduce_dtype: str = setting(
        "as_is",
        "Type of gradients on the wire between processes; narrower ones halve the "
        "traffic and are no longer exactly the same training.",
        choices=("as_is", "bfloat16", "float16"),
        used_by=_of_those_that_name("all_reduce_dtype"),
    )
    gradient_compression: str = setting(
        NONE,
        "Approximation of gradients that workers send: powersgd:RANK, of low rank; "
        "int8, rounded to 8 bits; topk:FRACTION, the largest entries; none. The rest "
        "is added to the next step's gradients.",
        used_by=_of_those_that_name("gradient_compression"),
    )

    shard_optimizer_state: bool = setting(
        False,
        "Divide the optimizer's state, such as momentum, and its work between workers "
        "(ZeRO, stage 1). The weights stay whole, and the training the same.",
        used_by=_of_those_that_name("shard_optimizer_state"),
    )

    pipeline_stages: tuple[str, ...] | None = setting(
        None,
        "How model_parallel splits the model: a number of stages, balanced by the time "
        "their layers take, or the first layer of every stage but the first. Default: "
        "one for each GPU; 2 without GPUs.",
        used_by=_OF_STAGES,
    )
    num_microbatches: int | None = setting(
        None,
        "Parts of a global batch that are in the pipeline of model_parallel at once. "
        "Default: 4.",
        minimum=1,
        maximum=1_000,
        used_by=_OF_STAGES,
        has_flag=False,
    )

    num_workers: int | None = _of_clusters(
        None,
        "Worker processes of a strategy that has several. "
        f"Default: {_DEFAULT_NUM_WORKERS}.",
        minimum=1,
        maximum=_MOST_TASKS,
    )
    num_ps: int | None = setting(
        None,
        "Parameter server processes, of strategies that have them. Default: 1.",
        minimum=1,
        maximum=_MOST_TASKS,
        used_by=_OF_SERVERS,
    )
    collective_implementation: str = setting(
        "auto",
        "How multi_worker_mirrored sums: auto is nccl on GPUs and ring on CPUs.",
        choices=("auto", "ring", "nccl"),
        used_by=_of_those_that_name("collective_implementation"),
        has_flag=False,
    )
    peer_timeout_seconds: float = _of_clusters(
        10.0,
        "Seconds that a task may be silent until it counts as lost.",
        above=0,
        has_flag=False,
    )
    startup_timeout_seconds: float = _of_clusters(
        60.0,
        "How long a cluster may take to assemble.",
        above=0,
        has_flag=False,
    )
    stop_timeout_seconds: float = _of_clusters(
        10.0,
        "Seconds in which tasks that are asked to stop can save a checkpoint.",
        above=0,
        has_flag=False,
    )
    max_restarts: int | None = _of_clusters(
        None,
        "Restarts, from the newest checkpoint, of lost tasks of a cluster on this "
        "machine. Progress resets the count. 0: none. Default: "
        f"{_DEFAULT_MAX_RESTARTS}.",
        minimum=0,
        maximum=1_000,
    )
    isolate_network: str = _of_clusters(
        network_isolation.AUTO,
        "Give a cluster that is started on this machine a private network, which "
        "nobody else can reach. auto: if the machine allows it. required: refuse to "
        "start otherwise.",
        choices=network_isolation.CHOICES,
        has_flag=False,
    )
    emulated_bandwidth_mbit: float | None = _of_clusters(
        None,
        "Megabits a second that each task of a cluster on this machine sends and "
        "receives at most, over an emulated network. Default: loopback, no limit.",
        above=0,
        maximum=100_000,
    )
    allow_remote_hosts: bool = _of_clusters(
        False,
        "Accept hosts other than loopback in TF_CONFIG or from Slurm. TensorFlow "
        "servers ask for no password, encrypt nothing and run any graph sent to them.",
    )

    def __post_init__(self) -> None:
        # Types and bounds of single settings first: the other checks rely on them.
        check_settings(self)
        for check in CHECKS:
            check(self)

    @property
    def expected_workers(self) -> int:
        """Number of workers unless TF_CONFIG or Slurm says otherwise."""
        return self.num_workers or _DEFAULT_NUM_WORKERS

    @property
    def restarts_without_progress(self) -> int:
        """Maximum number of restarts of dead tasks without progress of the run."""
        given = self.max_restarts
        # 0 disables restarts, so that `or` would not do.
        return _DEFAULT_MAX_RESTARTS if given is None else given

    @property
    def device_choice(self) -> DeviceChoice:
        """Devices that --devices asks for, which may be none."""
        return parse_devices(self.devices or (), bool(self.soft_placement))

    @property
    def num_stages(self) -> int | None:
        """Number of stages of a split model; None if --pipeline_stages does not say."""
        if self.pipeline_stages is None:
            return None
        if self.layers_that_begin_stages is not None:
            # The first stage begins with the first layer, which is not named.
            return 1 + len(self.layers_that_begin_stages)
        return int(self.pipeline_stages[0])

    @property
    def layers_that_begin_stages(self) -> tuple[str, ...] | None:
        """First layer of every stage but the first; None if no layers are named."""
        if self.pipeline_stages is None or (
            len(self.pipeline_stages) == 1 and self.pipeline_stages[0].isdecimal()
        ):
            return None
        return self.pipeline_stages

    @property
    def is_synchronous(self) -> bool:
        """True if every update uses gradients of the current weights."""
        if self.update is not None:
            return self.update == "sync"
        return registry.traits(self.strategy).synchronous

    @property
    def traits(self) -> Traits:
        """Traits that the strategy declares, adjusted to this configuration."""
        declared = registry.traits(self.strategy)
        return dataclasses.replace(
            declared,
            synchronous=self.is_synchronous,
            matches_one_device=self._matches_one_device(declared),
            # Asynchronous replicas read any step on request.
            supports_streaming=declared.supports_streaming and self.is_synchronous,
            # An asynchronous update has the gradient of one replica: nothing to
            # average.
            averages=declared.averages if self.is_synchronous else (),
            reuses_traces=declared.reuses_traces and not self._keeps_own_state,
        )

    def _matches_one_device(self, declared: Traits) -> bool:
        if self.gradient_reduction != "mean" or self.average == "parameters":
            return False
        if self.compression is not None or self.all_reduce_dtype != "as_is":
            return False
        if declared.updates:
            # Stale or dropped gradients make another training.
            return self.is_synchronous and not self.backup_workers
        return declared.matches_one_device

    @property
    def _keeps_own_state(self) -> bool:
        """True if replicas have state beside the model's and the optimizer's."""
        has_parts = self.shard_optimizer_state or self.compression is not None
        return has_parts or self.average == "parameters" or not self.is_synchronous

    def num_shards(self, num_replicas: int) -> int:
        """Returns the number of shards of a global batch.

        Asynchronous replicas take whole global batches, and an update of synchronous
        ones sums a shard of each replica that it waits for.
        """
        # A cluster that is too small for its backup workers is refused elsewhere.
        return max(self.num_required(num_replicas), 1)

    def num_required(self, num_workers: int) -> int:
        """Returns the number of workers that an update waits for."""
        return num_workers - self.backup_workers if self.is_synchronous else 1

    @property
    def has_stale_gradients(self) -> bool:
        """True if an update may be computed on weights that other replicas change.

        A single asynchronous worker or tower always computes on the newest weights.
        """
        replicas = self.num_replicas or self.device_choice.num_devices
        if self.traits.multi_process:
            replicas = self.expected_workers
        return not self.is_synchronous and replicas != 1

    @property
    def averaged(self) -> str | None:
        """Values that updates average over replicas; None if there are none."""
        # The first one is the strategy's default.
        averages = self.traits.averages
        return self.average or (averages[0] if averages else None)

    @property
    def compression(self) -> Compression | None:
        """Way to compress gradients; None if they are sent as they are."""
        return parse_compression(self.gradient_compression)

    @property
    def steps_between_averages(self) -> int:
        """Number of steps from one average of parameters to the next."""
        return self.sync_every_steps or _DEFAULT_SYNC_EVERY_STEPS

    @property
    def outer_rate(self) -> float:
        """Learning rate of the outer optimizer."""
        given = self.outer_learning_rate
        return _OUTER_DEFAULTS[self.outer_optimizer][0] if given is None else given

    @property
    def outer_momentum_factor(self) -> float:
        """Momentum of the outer optimizer."""
        given = self.outer_momentum
        return _OUTER_DEFAULTS[self.outer_optimizer][1] if given is None else given
