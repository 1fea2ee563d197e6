"""One model over several devices, with layers in pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.types import (
    Communication,
    GlobalBatches,
    ReplicaFunction,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import CPU, take_devices
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.step import Step


class ModelParallel(Strategy):
    """One replica that places a stage of layers on each device.

    The replica's step divides the layers (see `trainers.pipeline_parallel`), not this
    class. Variables are created in host memory, which a model that fits on no single
    device may need, and are then moved to the device of their stage.
    """

    name = "model_parallel"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        is_model_parallel=True,
        max_replicas=1,
        averages=(),
        summary="The model's layers in stages, one per device, fed as a pipeline.",
    )

    def __init__(self, devices: Sequence[str]):
        self.devices = tuple(devices)

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> ModelParallel:
        del cluster
        devices = take_devices(
            config.device_choice,
            config.num_stages,
            wanted_without_gpu=2,
            setting="--pipeline_stages",
        )
        # --soft_placement may leave out a replica, but no stage.
        if len(devices) < (config.num_stages or 0):
            raise UsageError(
                f"--pipeline_stages={config.num_stages} needs as many devices, and of "
                f"{config.device_choice} there are {len(devices)}: use fewer stages."
            )
        return cls(devices)

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(CPU)

    def distribute(self, batches: GlobalBatches) -> Any:
        # Whole global batches: the pipeline divides them into micro-batches.
        return StepChunks(batches.spans(0, 1))

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> InnerLoop:
        # One replica: its outputs are their own sum.
        step = Step(lambda replica_step, batch: replica_step(batch))
        return InnerLoop(step, replica_step, update)

    def communication(self, gradient_bytes: int) -> Communication | None:
        return Communication(
            algorithm="activations sent to later stages, their gradients sent back",
            # Activations forward, gradients of the same size back.
            bytes_per_step_per_replica=2 * gradient_bytes,
        )
