"""Local SGD: replicas train copies of the weights and average them.

Each replica has a copy of the weights, of the layer state and of the optimizer's state.
In every step it takes its rows of the global batch and applies their gradient to its
copy, without communication. After every `sync_every_steps` steps the weights and the
layer state become the mean over replicas; with `average_optimizer_state` the
optimizer's state too. With an outer optimizer the weights become the result of its
step (`strategies.local_sgd.outer_optimizer`).

The method is known as iterative parameter mixing (McDonald et al., Distributed Training
Strategies for the Structured Perceptron, 2010) and as local SGD (Stich, Local SGD
Converges Fast and Communicates Little, 2018). Averaging momentum too is from Yu, Jin
and Yang, On the Linear Speedup Analysis of Communication Efficient Momentum SGD, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.spec import Cluster
from strategies.common.types import (
    Communication,
    GlobalBatches,
    LoopFunction,
    ReplicaFunction,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import take_devices
from strategies.inner_loop.all_reduce import all_reduce_local
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.replicated import compile_replicated
from strategies.inner_loop.sharding import take_replica_shard
from strategies.local_sgd.averages import Averages
from strategies.local_sgd.replica_variables import DeviceCopies


class ParameterAveraging(Strategy):
    """Copies of the weights on the devices of one process, averaged every few steps.

    The copies are the components of `tf.distribute.MirroredStrategy`'s variables. Under
    `mirrored` they stay equal because every replica applies the same sum; here each
    replica applies its own gradient.
    """

    name = "parameter_averaging"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=False,
        sums_in_forward_pass=True,
        averages=("parameters",),
        summary="A copy of the weights per device, weights averaged every few steps.",
    )

    def __init__(self, devices: Sequence[str], config: StrategyConfig):
        self.devices = tuple(devices)
        self._config = config
        self._strategy = tf.distribute.MirroredStrategy(
            self.devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        self._averages: Averages | None = None

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> ParameterAveraging:
        del cluster
        devices = take_devices(
            config.device_choice, config.num_replicas, wanted_without_gpu=2
        )
        return cls(devices, config)

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def distribute(self, batches: GlobalBatches) -> Any:
        # Whole global batches: each replica slices its shard on its device.
        return StepChunks(batches.spans(0, 1))

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> LoopFunction:
        # Evaluation changes no weights: it sums over replicas as `mirrored` does.
        if update is None:
            return compile_replicated(
                self._strategy, take_replica_shard, all_reduce_local, replica_step, None
            )
        copies = DeviceCopies(self._strategy, update)
        self._averages = Averages(self._strategy, copies, update, self._config)
        # Between two calls the variables hold the mean, for evaluation and checkpoints.
        return self._averages.compile(
            take_replica_shard,
            all_reduce_local,
            replica_step,
            after_call=copies.store_local,
        )

    def communication(self, gradient_bytes: int) -> Communication | None:
        averages = self._averages
        if self.num_replicas == 1 or averages is None:
            return None
        return Communication(
            algorithm=f"{averages.quantity} to and from the first replica, "
            f"{averages.schedule}",
            bytes_per_step_per_replica=round(2 * averages.bytes_per_step),
        )

    def replica_state(self) -> Sequence[tf.Variable]:
        return [] if self._averages is None else self._averages.variables()
