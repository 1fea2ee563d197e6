"""One replica on one device, the control of comparisons."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.spec import Cluster
from strategies.common.types import (
    Batch,
    GlobalBatches,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import take_devices
from strategies.inner_loop.compiled_loop import CompiledLoop
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.step import Step


class OneDevice(Strategy):
    """The whole global batch on the first GPU, or on the CPU without a GPU."""

    name = "one_device"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        supports_streaming=True,
        updates_in_turn=True,
        reuses_traces=True,
        compiles_loop=True,
        applies_in_branches=True,
        max_replicas=1,
        averages=(),
        summary="No distribution: the control that the others are compared with.",
    )

    def __init__(self, device: str):
        self._device = device
        self.devices = (device,)

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> OneDevice:
        del cluster
        devices = take_devices(
            config.device_choice, config.num_replicas, wanted_without_gpu=1
        )
        return cls(devices[0])

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(self._device)

    def distribute(self, batches: GlobalBatches) -> Any:
        # Shard 0 of 1: the whole global batch.
        return StepChunks(batches.spans(0, 1), batches.largest_span)

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> InnerLoop:
        return InnerLoop(self._step(), replica_step, update)

    def compile_loop(self, replica_step: ReplicaFunction, update: Update) -> InnerLoop:
        return CompiledLoop(self._step(), replica_step, update)

    def _step(self) -> Step:
        # One replica: its outputs are their own sum.
        def all_reduce_gradients(
            replica_step: ReplicaFunction, batch: Batch
        ) -> ReplicaOutputs:
            with tf.device(self._device):
                return replica_step(batch)

        def apply(update: Update, outputs: ReplicaOutputs) -> None:
            with tf.device(self._device):
                update.apply(outputs)
                update.increment_step()

        return Step(all_reduce_gradients, apply)

    def communication(self, gradient_bytes: int) -> None:
        return None
