"""Towers: a copy of the model per device, one set of weights.

This is the multi-GPU training of the TensorFlow 1 tutorials, written out in full. The
weights live on one device, the parameter device. In every step

1. the global batch is split by rows, one part for each tower;
2. each tower, on its device, reads the weights, and computes the loss and the
   gradient of its part;
3. on the parameter device the towers' gradients are averaged (or, with
   `--average=losses`, their losses, and one gradient of the mean is taken);
4. the weights are changed once, and the next step reads the new weights.

With `--update=async` no tower waits for another. Each takes whole global batches and
applies its gradient by itself (`strategies/inner_loop/async_towers.py`).

This strategy does not use `tf.distribute`: a tower is a `tf.device` scope and a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.spec import Cluster
from strategies.common.types import (
    Batch,
    Communication,
    GlobalBatches,
    LoopFunction,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import CPU, take_devices
from strategies.inner_loop.async_towers import AsynchronousTowers, TowerInput
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.reduction import sum_gradients, sum_structures
from strategies.inner_loop.sharding import take_shard
from strategies.inner_loop.step import Step


class Tower(Strategy):
    """One tower per device, with shared variables on a parameter device."""

    name = "tower"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=True,
        updates=("sync", "async"),
        averages=("gradients", "losses"),
        supports_streaming=True,
        updates_in_turn=True,
        reuses_traces=True,
        applies_in_branches=True,
        exchange="reduce_to_one",
        summary="Towers written out: weights on one device, gradients summed there.",
    )

    def __init__(
        self, devices: Sequence[str], parameter_device: str, config: StrategyConfig
    ):
        self.devices = tuple(devices)
        self._parameter_device = parameter_device
        self._waits_for_all = config.is_synchronous

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> Tower:
        del cluster
        devices = take_devices(
            config.device_choice, config.num_replicas, wanted_without_gpu=2
        )
        return cls(devices, parameter_device=CPU, config=config)

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(self._parameter_device)

    def distribute(self, batches: GlobalBatches) -> Any:
        if not self._waits_for_all:
            # Each tower reads the batches of the steps that it is given.
            return TowerInput.of(batches)
        # Whole global batches: each tower slices its rows (see `compile`).
        return StepChunks(batches.spans(0, 1))

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> LoopFunction:
        if not self._waits_for_all:
            return AsynchronousTowers(
                self.devices, self._parameter_device, replica_step, update
            )

        def all_reduce_gradients(
            replica_step: ReplicaFunction, batch: Batch
        ) -> ReplicaOutputs:
            towers = []
            for index, device in enumerate(self.devices):
                # The name scope groups the operations of a tower in TensorBoard's
                # graph.
                with tf.device(device), tf.name_scope(f"tower_{index}"):
                    part = take_shard(batch, index, self.num_replicas)
                    towers.append(replica_step(part))
            with tf.device(self._parameter_device):
                return ReplicaOutputs(
                    gradients=self._averaged_gradients(towers, update),
                    state=sum_structures([tower.state for tower in towers]),
                    sums=sum_structures([tower.sums for tower in towers]),
                )

        def apply(update: Update, outputs: ReplicaOutputs) -> None:
            with tf.device(self._parameter_device):
                # Once per step: all towers read the new weights in the next step.
                update.apply(outputs)
                update.increment_step()

        return InnerLoop(Step(all_reduce_gradients, apply), replica_step, update)

    def _averaged_gradients(
        self, towers: Sequence[ReplicaOutputs], update: Update | None
    ) -> list[Any]:
        # Only training steps with --average=losses have them.
        losses = [tower.loss for tower in towers if tower.loss is not None]
        if update is not None and losses:
            return differentiate_average_loss(update, losses)
        return average_gradients([tower.gradients for tower in towers])

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1:
            return None
        return Communication(
            algorithm="weights read from and gradients sent to the parameter device",
            bytes_per_step_per_replica=2 * gradient_bytes,
        )


def average_gradients(tower_gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Averages the gradient of every variable over all towers.

    The tutorials' function of this name took the mean of the towers' gradients, each of
    which was a mean over that tower's examples. That equals the mean over the global
    batch only if all towers have the same number of examples. Here a tower's gradient
    is already divided by the number of examples in the *global* batch, so that the sum
    over towers is the average over all examples, even if they are split unevenly.

    Args:
      tower_gradients: Gradients of each tower, with one gradient per variable in the
        same order; all towers have None where the loss does not need the variable.

    Returns:
      The averaged gradient of each variable, IndexedSlices where the towers' gradients
      are.
    """
    return [sum_gradients(parts) for parts in zip(*tower_gradients, strict=True)]


def differentiate_average_loss(
    update: Update, losses: Sequence[tf.Tensor]
) -> list[Any]:
    """Averages the losses of all towers, and takes one gradient of the average.

    Some tutorials do this instead of averaging gradients. Differentiation is linear, so
    that the result is the same. Each tower's part of the gradient is still computed on
    the tower's device, but the parameter device cannot begin before all losses have
    arrived.

    Args:
      update: Update with the variables.
      losses: Loss of each tower, divided by the number of examples in the global batch:
        their sum is the average.
    """
    return list(update.gradients_of(tf.add_n(losses)))
