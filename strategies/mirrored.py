"""A copy of the weights on every device, kept equal by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.spec import Cluster
from strategies.collectives.update_exchange import ring_factor
from strategies.common.errors import UsageError
from strategies.common.types import (
    Communication,
    GlobalBatches,
    ReplicaFunction,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import require_gpus, take_devices
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.replicated import all_reduce_local, compile_replicated
from strategies.inner_loop.sharding import take_replica_shard

_REDUCTIONS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


class Mirrored(Strategy):
    """`tf.distribute.MirroredStrategy`, fed from one plain iterator.

    A distributed iterator would split batches itself. It costs more than the whole step
    of a small model (0.46 against 0.15 milliseconds for a 5-10-2 network on 2 logical
    CPUs), and cannot start at a given step.
    """

    name = "mirrored"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        supports_streaming=True,
        updates_in_turn=True,
        reuses_traces=True,
        sums_in_forward_pass=True,
        exchange="reduce_to_one",
        own_settings=("cross_device_reduction",),
        summary="A copy of the weights per device, gradients summed across devices.",
    )

    def __init__(self, devices: Sequence[str], reduction: str):
        self.devices = tuple(devices)
        self._reduction = reduction
        self._strategy = tf.distribute.MirroredStrategy(
            self.devices, cross_device_ops=_REDUCTIONS[reduction]()
        )

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Mirrored:
        del cluster
        devices = take_devices(
            config.device_choice, config.num_replicas, wanted_without_gpu=2
        )
        on_gpus = "GPU" in devices[0]
        reduction = config.cross_device_reduction
        if reduction == "nccl":
            require_gpus(
                "--set=strategy.cross_device_reduction=nccl", "auto or one_device"
            )
        if reduction == "auto":
            # NCCL needs GPUs; one device has nothing to reduce.
            reduction = "nccl" if on_gpus and len(devices) > 1 else "one_device"
        if reduction == "hierarchical":
            _check_halves(len(devices))
        return cls(devices, reduction)

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def distribute(self, batches: GlobalBatches) -> Any:
        # Whole global batches: each replica slices its shard on its device.
        return StepChunks(batches.spans(0, 1))

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> InnerLoop:
        return compile_replicated(
            self._strategy, take_replica_shard, all_reduce_local, replica_step, update
        )

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1:
            return None
        # Each replica sends its gradient to one place, and receives the sum.
        is_ring = self._reduction == "nccl"
        factor = ring_factor(self.num_replicas) if is_ring else 2.0
        return Communication(
            algorithm=f"all-reduce, cross_device_reduction={self._reduction}",
            bytes_per_step_per_replica=round(factor * gradient_bytes),
        )


def _check_halves(num_devices: int) -> None:
    """Raises UsageError for an odd number: a hierarchical sum would omit a device.

    TensorFlow sums in two groups of `num_devices // 2` devices
    (`aggregate_gradients_using_hierarchical_copy` in
    tensorflow/python/distribute/cross_device_utils.py).
    """
    if num_devices > 1 and num_devices % 2:
        raise UsageError(
            "--set=strategy.cross_device_reduction=hierarchical sums in two groups of "
            f"equally many devices, and there are {num_devices}: use an even number of "
            "replicas, or auto or one_device."
        )
