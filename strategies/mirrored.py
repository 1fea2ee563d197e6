"""A full copy of the weights on every device, kept equal by summing gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import (
    Batch,
    Communication,
    MakeBatches,
    ReplicaStep,
    Shares,
    Strategy,
    StrategyConfig,
    Traits,
    Update,
)
from strategies.batch import take_share
from strategies.cluster import Cluster
from strategies.devices import replica_devices
from strategies.inner_loop import InnerLoop, Step
from strategies.settings import UsageError


class Mirrored(Strategy):
    """`tf.distribute.MirroredStrategy`, fed from one plain iterator.

    A distributed iterator would split batches for us, but it costs more than a
    small model's whole step (0.46 against 0.15 milliseconds for a 5-10-2 network
    on 2 logical CPUs) and cannot be started at a given step.
    """

    name = "mirrored"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        summary="A copy of the weights per device, gradients summed across devices.",
    )

    def __init__(self, devices: Sequence[str], reduction: str):
        self._devices = tuple(devices)
        self._reduction = reduction
        self._strategy = tf.distribute.MirroredStrategy(
            self._devices, cross_device_ops=_REDUCTIONS[reduction]()
        )

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Mirrored:
        del cluster
        devices = replica_devices(config.num_replicas, replicas_without_gpu=2)
        on_gpus = "GPU" in devices[0]
        reduction = config.cross_device_reduction
        if reduction == "nccl" and not on_gpus:
            raise UsageError(
                "--cross_device_reduction=nccl needs GPUs and none was found: use "
                "auto, hierarchical or one_device."
            )
        if reduction == "auto":
            reduction = "nccl" if on_gpus and len(devices) > 1 else "one_device"
        return cls(devices, reduction)

    @property
    def devices(self) -> Sequence[str]:
        return self._devices

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def distribute(self, make_batches: MakeBatches) -> Any:
        return iter(make_batches(0, 1))

    def compile(self, replica_step: ReplicaStep, update: Update | None) -> InnerLoop:
        def sum_shares(batch: Batch) -> Any:
            def on_each_replica() -> Shares:
                context = tf.distribute.get_replica_context()
                replica = context.replica_id_in_sync_group
                shares = replica_step(take_share(batch, replica, self.num_replicas))
                return _sum_over_replicas(context, shares)

            return self._strategy.run(on_each_replica)

        def apply(update: Update, summed: Any) -> None:
            self._strategy.run(update.apply, args=(summed,))

        return InnerLoop(Step(sum_shares, apply, self._first), update)

    def _first(self, summed: Any) -> Shares:
        """The sum on the first device; all devices hold the same."""
        return tf.nest.map_structure(
            lambda value: self._strategy.experimental_local_results(value)[0], summed
        )

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1:
            return None
        factor = 2.0
        if self._reduction == "nccl":
            # A ring sends each of N pieces N-1 times to add and N-1 times to share:
            # Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
            factor = 2 * (self.num_replicas - 1) / self.num_replicas
        return Communication(
            algorithm=f"all-reduce, {self._reduction}",
            bytes_per_step_per_replica=round(factor * gradient_bytes),
        )


_REDUCTIONS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def _sum_over_replicas(context: tf.distribute.ReplicaContext, shares: Shares) -> Shares:
    """Adds up every replica's shares: the only reduction of a step."""
    flat = tf.nest.flatten(shares)
    present = [value for value in flat if value is not None]
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    flat = [None if value is None else next(summed) for value in flat]
    return tf.nest.pack_sequence_as(shares, flat)
