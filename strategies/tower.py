"""Towers, written out by hand: one copy of the model per device, one set of weights.

This is the multi-GPU training of the TensorFlow 1 tutorials, in full. The
weights live on one device, the parameter device. For every step

1. the global batch is split by rows, one part for each tower;
2. each tower, on its own device, reads the weights, and computes the loss and
   the gradient of its part;
3. on the parameter device the towers' gradients are averaged;
4. the weights are changed once, and the next step reads the new ones.

`tf.distribute` has no part in it: a tower is a `tf.device` scope and a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import (
    Batch,
    Communication,
    GlobalBatches,
    ReplicaStep,
    Shares,
    Strategy,
    Update,
)
from strategies.batch import take_share
from strategies.cluster import Cluster
from strategies.config import StrategyConfig
from strategies.devices import CPU, replica_devices
from strategies.inner_loop import InnerLoop, Step
from strategies.shares import sum_gradients, sum_structures
from strategies.traits import Traits


class Tower(Strategy):
    """One tower per device over shared variables on a parameter device."""

    name = "tower"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        summary="Towers written out: weights on one device, gradients averaged there.",
    )

    def __init__(self, devices: Sequence[str], parameter_device: str):
        self._devices = tuple(devices)
        self._parameter_device = parameter_device

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Tower:
        del cluster
        devices = replica_devices(config.num_replicas, replicas_without_gpu=2)
        return cls(devices, parameter_device=CPU)

    @property
    def devices(self) -> Sequence[str]:
        return self._devices

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(self._parameter_device)

    def distribute(self, batches: GlobalBatches) -> Any:
        return iter(batches.dataset(0, 1))

    def compile(self, replica_step: ReplicaStep, update: Update | None) -> InnerLoop:
        def sum_shares(replica_step: ReplicaStep, batch: Batch) -> Shares:
            towers = []
            for index, device in enumerate(self._devices):
                with tf.device(device), tf.name_scope(f"tower_{index}"):
                    part = take_share(batch, index, self.num_replicas)
                    towers.append(replica_step(part))
            with tf.device(self._parameter_device):
                return Shares(
                    gradients=average_gradients([tower.gradients for tower in towers]),
                    state=sum_structures([tower.state for tower in towers]),
                    sums=sum_structures([tower.sums for tower in towers]),
                )

        def apply(update: Update, shares: Shares) -> dict[str, tf.Tensor]:
            with tf.device(self._parameter_device):
                update.apply(shares)
                update.count()
            return {}

        return InnerLoop(
            Step(sum_shares, apply, lambda shares: shares), replica_step, update
        )

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1:
            return None
        return Communication(
            algorithm="weights read from and gradients sent to the parameter device",
            bytes_per_step_per_replica=2 * gradient_bytes,
        )


def average_gradients(tower_gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Averages the gradient of every variable over all towers.

    The tutorials' function of this name took the mean of the towers' gradients,
    each of which was a mean over that tower's examples. That equals the mean over
    the global batch only while all towers have equally many examples. Here a
    tower's gradient is already divided by the number of examples in the *global*
    batch, so adding the towers up gives the average over all examples, however
    unevenly they are split.

    Args:
      tower_gradients: for each tower, the gradient of each variable in the same
        order; all towers have None where the loss does not need the variable.

    Returns:
      For each variable the averaged gradient, IndexedSlices where towers' are.
    """
    return [sum_gradients(parts) for parts in zip(*tower_gradients, strict=True)]
