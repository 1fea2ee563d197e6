"""Configuration of a run: frozen groups of settings.

Each field is a flag or a `--set`, an entry of the help, a key of config.json and a
validation rule. The groups determine the order of the help and the nesting of files.
This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from strategies import registry
from strategies.base import Traits
from strategies.common.errors import UsageError
from strategies.config import StrategyConfig
from strategies.devices.config import DeviceConfig
from trainers.config.comparison import ComparisonConfig
from trainers.config.data import DataConfig
from trainers.config.fault_tolerance import GuardConfig
from trainers.config.groups import GROUPS, all_fields, by_group, field_of
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.config.prediction import PredictionConfig
from trainers.config.run import (
    LARGEST_SEED,
    LengthConfig,
    ReportConfig,
    RunConfig,
    ThreadsConfig,
)
from trainers.config.tracking import TrackingConfig

# `to_dict` omits these groups' settings at their default values, because a training run
# does not read them.
_GROUPS_OF_OTHER_MODES = ("comparison", "prediction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    strategy: StrategyConfig = dataclasses.field(default_factory=StrategyConfig)
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    threads: ThreadsConfig = dataclasses.field(default_factory=ThreadsConfig)
    length: LengthConfig = dataclasses.field(default_factory=LengthConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    comparison: ComparisonConfig = dataclasses.field(default_factory=ComparisonConfig)
    prediction: PredictionConfig = dataclasses.field(default_factory=PredictionConfig)

    def __post_init__(self) -> None:
        """Checks constraints that involve more than one group.

        Raises:
          UsageError: Two settings contradict each other.
        """
        replicas, name = self.strategy.num_replicas, self.strategy.strategy
        if replicas and registry.traits(name).multi_process:
            raise UsageError(
                f"--num_replicas={replicas} is not used by --strategy={name}, whose "
                "workers have a replica for each of their GPUs, or one without GPUs: "
                "give --num_workers instead."
            )
        self.device.check_strategy(
            name, self.strategy.traits, self.strategy.device_choice
        )
        self.model.check_ballast(self.run.mode, self.strategy, self.report.export)
        self._check_batch_size()
        if self.report.record_steps and self.strategy.has_stale_gradients:
            raise UsageError(
                "--set=report.record_steps=true does not fit --update=async: every "
                "step would be a "
                "call of its own, and no gradient stale; use --update=sync, or leave "
                "--set=report.record_steps=true out."
            )
        if self.model.jit_compile and self.strategy.averaged == "losses":
            raise UsageError(
                "--jit_compile does not fit --average=losses: XLA compiles what one "
                "replica computes, and the gradient is of all of them; leave one out."
            )
        self._check_micro_batches()
        self._check_replica_statistics()
        if self.run.mode == "evaluate" and self.run.run_dir is None:
            raise UsageError(
                "--mode=evaluate needs --run_dir: give the folder of a finished run."
            )
        self.comparison.check_mode(self.run.mode, self.strategy.strategy)
        if self.run.mode == "compare" and self.comparison.runs is None:
            self.comparison.check_seed(self.run.seed, LARGEST_SEED)
        if self.data.is_streamed and not registry.traits(name).supports_streaming:
            others = (
                n for n in registry.names() if registry.traits(n).supports_streaming
            )
            raise UsageError(
                f"--sharding={self.data.sharding} does not fit --strategy={name}, "
                "which reads any step on request: use --sharding=exact, or "
                f"--strategy={' or '.join(others)}."
            )

    @property
    def traits(self) -> Traits:
        """Traits of the strategy under this configuration and data set."""
        traits = self.strategy.traits
        # With file sharding each worker reads different files, so the global batches
        # differ from a single process's and the training cannot match one device.
        if self.data.sharding == "file" and traits.multi_process:
            return dataclasses.replace(traits, matches_one_device=False)
        return traits

    @property
    def drops_last_batch(self) -> bool:
        """True if all global batches are full.

        Readers of file shards repeat their files, so they never yield a partial batch.
        """
        return self.length.drop_last_batch or self.data.sharding == "file"

    def _shards_of_a_batch(self) -> int:
        """Returns the number of shards of a global batch, as far as it is known yet."""
        # Without `--num_replicas` the replicas are counted later, when the devices are
        # known; 1 is the lower bound.
        return self.strategy.num_shards(self.strategy.num_replicas or 1)

    def _check_batch_size(self) -> None:
        size = self.length.global_batch_size
        replicas = self._shards_of_a_batch()
        if size < replicas:
            raise UsageError(
                f"--global_batch_size={size} is smaller "
                f"than --num_replicas={replicas}: every replica needs an example; "
                "raise the one or lower the other."
            )
        choice = self.strategy.device_choice
        # Under soft placement the number of replicas may be smaller than the number of
        # devices. A model-parallel strategy uses the devices for stages, not for
        # replicas.
        is_known = not (choice.is_soft or self.strategy.traits.is_model_parallel)
        if is_known and size < choice.num_devices:
            raise UsageError(
                f"--global_batch_size={size} is smaller than the "
                f"{choice.num_devices} replicas of {choice}, each of which needs an "
                "example: raise the one or name fewer."
            )

    def _check_replica_statistics(self) -> None:
        strategy = self.strategy
        divides = (
            strategy.is_synchronous
            and not strategy.traits.is_model_parallel
            and strategy.averaged == "gradients"
            and strategy.traits.max_replicas != 1
        )
        if self.report.replica_statistics and not divides:
            raise UsageError(
                "--set=report.replica_statistics=true does not fit "
                f"--strategy={strategy.strategy} as "
                "it is set: there must be several replicas that share each global "
                "batch and average gradients; use mirrored, for one, or leave it out."
            )

    def _check_micro_batches(self) -> None:
        size = self.length.global_batch_size
        steps = self.strategy.gradient_accumulation_steps
        if steps > 1 and self.strategy.averaged == "losses":
            raise UsageError(
                f"--gradient_accumulation_steps={steps} does not fit --average=losses, "
                "whose one gradient needs what all examples left in memory: leave one "
                "out."
            )
        parts = {
            "num_replicas": self._shards_of_a_batch(),
            "gradient_accumulation_steps": steps,
            "num_microbatches": self.strategy.num_microbatches or 1,
        }
        # The splits nest: each replica's shard is cut into accumulation steps, and each
        # of them into micro-batches, so the counts multiply.
        if size < math.prod(parts.values()):
            product = " x ".join(f"--{n}={k}" for n, k in parts.items() if k > 1)
            raise UsageError(
                f"--global_batch_size={size} is smaller than {product}: every "
                "micro-batch needs an example; raise the one or lower the other."
            )

    # `self` is positional-only, so that a file with a setting named `self` reaches
    # `field_of`, which rejects it as unknown.
    def replace(self, /, **values: Any) -> Config:
        """Returns a copy with some settings changed.

        Args:
          **values: New values by flat setting name.

        Raises:
          UsageError: A name is unknown, or a value is not accepted.
        """
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changes.setdefault(field_of(name)[0].group, {})[name] = value
        groups = {
            group: dataclasses.replace(getattr(self, group), **settings)
            for group, settings in changes.items()
        }
        # One call with all groups, so that `__post_init__` checks only the final
        # combination and not the intermediate ones.
        return dataclasses.replace(self, **groups)

    def to_dict(self) -> dict[str, Any]:
        """Returns all settings by flat name, in types that JSON has.

        Settings of comparisons and predictions are omitted at their default values.
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for group in GROUPS
            for name, value in dataclasses.asdict(getattr(self, group)).items()
            if group not in _GROUPS_OF_OTHER_MODES
            or value != all_fields()[name][1].default
        }

    def by_group(self) -> dict[str, dict[str, Any]]:
        """Returns the settings of `to_dict` by group and name, as config.json has."""
        return by_group(self.to_dict())


def config_from_dict(settings: Mapping[str, Any]) -> Config:
    """Returns the configuration that `Config.to_dict` encoded.

    Absent settings keep their default values.

    Args:
      settings: Values by flat setting name.

    Raises:
      UsageError: A name is unknown, or a value is not accepted.
    """
    return Config().replace(
        **{name: without_lists(value) for name, value in settings.items()}
    )


def without_lists(value: Any) -> Any:
    """Returns a JSON list as the tuple that settings hold; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value
