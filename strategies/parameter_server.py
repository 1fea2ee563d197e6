"""Weights on parameter servers, gradients from workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.base import (
    Agreed,
    Batch,
    Communication,
    GlobalBatches,
    Observe,
    Pending,
    ReplicaStep,
    RunSteps,
    Shares,
    StepResults,
    Strategy,
    StrategyConfig,
    Traits,
    Update,
)
from strategies.cluster import Cluster
from strategies.inner_loop import InnerLoop, Step, loop_arguments
from strategies.library_internals import worker_of
from strategies.placement import BySize
from strategies.rendezvous import is_listening, meet
from strategies.resolver import resolver_of
from strategies.server import serve


class ParameterServer(Strategy):
    """`tf.distribute.ParameterServerStrategy` with its coordinator, asynchronous.

    Every update is computed by one worker from a global batch of its own. It reads
    the weights, computes, and applies without waiting for the others, so that the
    weights it changes may not be those it has read: the number of updates in
    between is the staleness of its gradient.
    """

    name = "parameter_server"
    traits = Traits(
        synchronous=False,
        multi_process=True,
        matches_one_device=False,
        roles=("chief", "worker", "ps"),
        optional_roles=("evaluator",),
        serving_roles=("worker", "ps"),
        summary="Weights on parameter servers; workers update them without waiting.",
    )

    # Workers idle at the end of a call while the last closure runs, about 20 ms.
    call_seconds = 0.5

    def __init__(self, config: StrategyConfig, cluster: Cluster):
        self._cluster = cluster
        self._num_workers = len(cluster.addresses["worker"])
        meet(cluster, config.startup_timeout_seconds)
        self._strategy = tf.distribute.ParameterServerStrategy(resolver_of(cluster))
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._placement = BySize(
            [
                f"/job:ps/replica:0/task:{index}/device:CPU:0"
                for index in range(len(cluster.addresses["ps"]))
            ]
        )
        self._residents: dict[GlobalBatches, Any] = {}

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> ParameterServer:
        return cls(config, cluster)

    @classmethod
    def serve(cls, config: StrategyConfig, cluster: Cluster, ending: str) -> int:
        return serve(cluster, config.startup_timeout_seconds, ending)

    @property
    def devices(self) -> Sequence[str]:
        return [f"/job:worker/task:{i}/device:CPU:0" for i in range(self._num_workers)]

    def scope(self) -> AbstractContextManager[Any]:
        return self._placement.scope()

    def distribute(self, batches: GlobalBatches) -> _Feed:
        """Puts what batches are read from on every worker, once."""
        if batches not in self._residents:
            dataset = self._coordinator.create_per_worker_dataset(batches.resident)
            self._residents[batches] = iter(dataset)
        return _Feed(self._residents[batches], batches, batches.first_step)

    def compile(self, replica_step: ReplicaStep, update: Update | None) -> RunSteps:
        return _WorkerSteps(
            self._coordinator, self._strategy, self._num_workers, replica_step, update
        )

    def communication(self, gradient_bytes: int) -> Communication | None:
        return Communication(
            algorithm="weights read from and gradients sent to parameter servers",
            bytes_per_step_per_replica=2 * gradient_bytes,
        )

    def synchronize(self) -> None:
        self._coordinator.join()

    def dismiss(self, ending: str, exit_code: int) -> None:
        for job in self.traits.serving_roles:
            for index, address in enumerate(self._cluster.addresses[job]):
                # Writing there would fail for a worker that was lost on the way.
                if not is_listening(address):
                    continue
                with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
                    tf.io.write_file(
                        ending.format(task=f"{job}-{index}"), str(exit_code)
                    )


@dataclasses.dataclass(slots=True)
class _Feed:
    """The input of all workers, and the step that is handed out next."""

    residents: Any
    batches: GlobalBatches
    next_step: int


# A closure costs about a millisecond to schedule and to fetch: an update of a
# 5-10-2 network took 4.0 ms with one step a closure, 1.7 with 10 and 1.4 with 50.
_TARGET_CLOSURE_SECONDS = 0.02


class _WorkerSteps:
    """Steps as closures, each of which one worker runs. Satisfies `RunSteps`."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        strategy: tf.distribute.ParameterServerStrategy,
        num_workers: int,
        replica_step: ReplicaStep,
        update: Update | None,
    ):
        self._coordinator = coordinator
        self._strategy = strategy
        self._num_workers = num_workers
        self._batches: GlobalBatches | None = None
        self._steps_per_closure = 1
        reported = () if update is None else ("staleness",)
        step = Step(
            self._read_and_compute(update),
            self._apply,
            first=lambda summed: summed[0],
            next_batch=self._next_batch,
            reported=reported,
        )
        self._loop = InnerLoop(step, replica_step, update)

    def trace(self, batches: _Feed) -> tf.Graph:
        """Traces by running no step: a closure's input exists on workers only."""
        self(batches, 0).fetch()
        return self._loop.graph

    def num_traces(self) -> int:
        return self._loop.num_traces()

    def __call__(
        self,
        batches: _Feed,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        self._batches = batches.batches
        closures: list[tuple[Any, Observe]] = []
        remaining = num_steps
        while remaining or not closures:
            count = min(remaining, self._steps_per_closure)
            remaining -= count
            looked = Observe.NOT if remaining else observe
            position, *others = self._arguments(
                batches.next_step, count, looked, proposed or Agreed()
            )
            closure = self._coordinator.schedule(
                self._loop.function, args=((batches.residents, position), *others)
            )
            closures.append((closure, looked))
            batches.next_step += count
        return _Scheduled(closures, self)

    def _arguments(
        self, first_step: int, count: int, observe: Observe, proposed: Agreed
    ) -> tuple[tf.Tensor, ...]:
        position = tf.constant(first_step, tf.int64)
        return (position, *loop_arguments(count, observe, proposed))

    def results(self, outputs: Sequence[tf.Tensor], observe: Observe) -> StepResults:
        return self._loop.results(outputs, observe)

    def learn(self, step_seconds: np.ndarray) -> None:
        """Adapts how many steps a closure has to how long they take on a worker."""
        if not len(step_seconds):
            return
        typical = max(float(np.median(step_seconds)), 1e-6)
        self._steps_per_closure = max(1, int(_TARGET_CLOSURE_SECONDS / typical))

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def _next_batch(self, batches: Any, index: tf.Tensor) -> Batch:
        if self._batches is None:
            raise RuntimeError("steps are traced before there is input")
        residents, first_step = batches
        step = first_step + tf.cast(index, tf.int64)
        return self._batches.at(next(residents), step, 0, 1)

    def _read_and_compute(
        self, update: Update | None
    ) -> Callable[[ReplicaStep, Batch], tuple[Shares, tf.Tensor]]:
        def compute(
            replica_step: ReplicaStep, batch: Batch
        ) -> tuple[Shares, tf.Tensor]:
            if update is None:
                return self._strategy.run(replica_step, args=(batch,)), tf.zeros([])
            version = update.applied_updates()
            # Whatever the step reads is read after the version it is said to be.
            with tf.control_dependencies([version]):
                batch = tf.nest.map_structure(tf.identity, batch)
                return self._strategy.run(replica_step, args=(batch,)), version

        return compute

    def _apply(
        self, update: Update, summed: tuple[Shares, tf.Tensor]
    ) -> Mapping[str, tf.Tensor]:
        shares, version = summed

        def apply() -> tf.Tensor:
            self._strategy.run(update.apply, args=(shares,))
            return tf.constant(0)

        # A function ends when all it changes is changed. Only then is the update
        # counted: a count that came first could be of an update that got lost.
        applied = tf.function(apply, autograph=False)()
        with tf.control_dependencies([applied]):
            count = update.count()
        return {"staleness": count - 1 - version}


@dataclasses.dataclass(frozen=True, slots=True)
class _Scheduled:
    """Closures in the order of their steps. Satisfies `Pending`."""

    closures: Sequence[tuple[Any, Observe]]
    steps: _WorkerSteps

    def fetch(self) -> StepResults:
        parts, workers = [], []
        for closure, observe in self.closures:
            outputs = closure.get()
            parts.append(self.steps.results(outputs, observe))
            workers.append(worker_of(closure))
        step_seconds = np.concatenate([part.step_seconds for part in parts])
        self.steps.learn(step_seconds)
        names = parts[0].sums
        return StepResults(
            applied_steps=sum(part.applied_steps for part in parts),
            sums={n: np.concatenate([p.sums[n] for p in parts]) for n in names},
            # Workers compute side by side: an update comes that much more often.
            step_seconds=step_seconds / self.steps.num_workers,
            input_seconds=np.concatenate([p.input_seconds for p in parts])
            / self.steps.num_workers,
            details=parts[-1].details,
            agreed=parts[-1].agreed,
            staleness=None
            if parts[0].staleness is None
            else np.concatenate([p.staleness for p in parts]),
            workers=np.repeat(workers, [len(p.step_seconds) for p in parts]),
        )
