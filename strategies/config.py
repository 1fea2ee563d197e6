"""The settings of distribution strategies. Does not import TensorFlow."""

from __future__ import annotations

import dataclasses

from strategies import discovery
from strategies.settings import UsageError, as_argument, check_settings, setting
from strategies.traits import Traits

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
    gradient_accumulation_steps: int = setting(
        1,
        "Micro-batches into which a replica divides its part of the global batch. They "
        "are computed one after another, so that memory need hold only one.",
        minimum=1,
        maximum=1_000_000,
    )
    stages: tuple[str, ...] | None = setting(
        None,
        "How model_parallel splits the model: a number of stages, balanced by the time "
        "their layers take, or the first layer of every stage but the first. Default: "
        "one for each GPU; 2 without GPUs.",
    )
    num_micro_batches: int | None = setting(
        None,
        "Parts of a global batch that are in the pipeline of model_parallel at once. "
        "Default: 4.",
        minimum=1,
        maximum=1_000,
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
        self._check_stages()
        self._check_update()

    @property
    def num_stages(self) -> int | None:
        """How many stages a model is split into, if --stages says so."""
        if self.stages is None:
            return None
        if self.layers_that_begin_stages is not None:
            return 1 + len(self.layers_that_begin_stages)
        return int(self.stages[0])

    @property
    def layers_that_begin_stages(self) -> tuple[str, ...] | None:
        """Of every stage but the first, if --stages names them."""
        if self.stages is None or (
            len(self.stages) == 1 and self.stages[0].isdecimal()
        ):
            return None
        return self.stages

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

    def _check_stages(self) -> None:
        for name in ("stages", "num_micro_batches"):
            value = getattr(self, name)
            if value is not None and not discovery.traits(self.strategy).splits_model:
                raise UsageError(
                    f"--{name}={as_argument(value)} is not used by --strategy="
                    f"{self.strategy}, which does not split the model: add "
                    "--strategy=model_parallel, or leave it out."
                )
        if self.num_stages is not None and self.num_stages < 2:
            raise UsageError(
                f"--stages={as_argument(self.stages)} is out of range: give 2 or more, "
                "or names of layers; --strategy=one_device does not split the model."
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
