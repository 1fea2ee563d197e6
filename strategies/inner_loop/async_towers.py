"""Asynchronous towers of one process.

Each tower has a separate thread. In it the tower takes a global batch, reads the
weights, computes the gradient on its device, and applies the gradient, without waiting
for other towers. TensorFlow 1 tutorials did the same with one `session.run` a thread.
These are the asynchronous updates of parameter servers, without servers (Niu et al.,
Hogwild!, 2011).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import (
    Batch,
    GlobalBatches,
    ReplicaFunction,
    ReplicaOutputs,
    StepResults,
    SummaryLevel,
    SyncedFlags,
    Update,
)
from strategies.inner_loop.input import IndexedInput
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.results import STALENESS, join_results
from strategies.inner_loop.staleness import changes_of
from strategies.inner_loop.step import Step

# Number of pieces of a call for each tower. With few long pieces all towers would wait
# for the last piece at the end of a call. Many short pieces would cost time in Python,
# a fraction of a millisecond between two pieces.
_PIECES_PER_TOWER = 4


@dataclasses.dataclass(slots=True)
class TowerInput:
    """Input of all towers: global batches, of which any tower reads any step.

    Batches are read from `cached_data`. The next call starts with `next_step`.
    """

    cached_data: Any
    batches: GlobalBatches
    next_step: int

    @classmethod
    def of(cls, batches: GlobalBatches) -> TowerInput:
        return cls(next(iter(batches.cached_data())), batches, batches.first_step)


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive steps that one tower runs without a return to Python."""

    first_step: int
    num_steps: int
    observe: SummaryLevel


class AsynchronousTowers:
    """Training loop of towers, each in its own thread. Satisfies `LoopFunction`."""

    def __init__(
        self,
        devices: Sequence[str],
        parameter_device: str,
        replica_step: ReplicaFunction,
        update: Update | None,
    ):
        self._towers = [
            _Tower(device, parameter_device, replica_step, update) for device in devices
        ]

    def trace(self, batches: TowerInput) -> tf.Graph:
        """Traces every tower, and returns the graph of the first."""
        first, *_ = [tower.trace(batches) for tower in self._towers]
        return first

    def num_traces(self) -> int:
        return max(tower.loop.num_traces() for tower in self._towers)

    def __call__(
        self,
        batches: TowerInput,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        # Tracing temporarily changes layers, so that one thread traces all towers.
        if not self.num_traces():
            self.trace(batches)
        pieces = _pieces(batches.next_step, num_steps, observe, len(self._towers))
        batches.next_step += num_steps
        pending = _PendingPieces(batches, pieces, local_flags or SyncedFlags())
        return pending.run(self._towers)


class _Tower:
    """One tower with an inner loop over whole global batches on its own device."""

    def __init__(
        self,
        device: str,
        parameter_device: str,
        replica_step: ReplicaFunction,
        update: Update | None,
    ):
        self._device = device
        self._parameter_device = parameter_device
        self._update = update
        self._batches: GlobalBatches | None = None
        step = Step(
            self._compute,
            self._apply,
            first=lambda summed: summed[0],
            input=IndexedInput(self._batch_at),
            divides_batches=False,
            reported=() if update is None else (STALENESS,),
        )
        self.loop = InnerLoop(step, replica_step, update)

    def trace(self, tower_input: TowerInput) -> tf.Graph:
        return self.loop.trace(self._input(tower_input, tower_input.next_step))

    def run(
        self, tower_input: TowerInput, piece: _Piece, local_flags: SyncedFlags
    ) -> StepResults:
        steps = self._input(tower_input, piece.first_step)
        return self.loop(steps, piece.num_steps, piece.observe, local_flags)

    def _input(self, tower_input: TowerInput, first_step: int) -> tuple[Any, tf.Tensor]:
        # The loop is traced with the first input. Later inputs read batches in the same
        # way, and `cached_data` is an argument of the traced function.
        self._batches = self._batches or tower_input.batches
        return tower_input.cached_data, tf.constant(first_step, tf.int64)

    def _batch_at(self, steps: tuple[Any, tf.Tensor], index: tf.Tensor) -> Batch:
        if self._batches is None:
            raise RuntimeError("steps are traced before there is input")
        cached_data, first_step = steps
        step = first_step + tf.cast(index, tf.int64)
        # Shard 0 of 1: a tower computes whole global batches.
        return self._batches.at(cached_data, step, 0, 1)

    def _compute(
        self, replica_step: ReplicaFunction, batch: Batch
    ) -> tuple[ReplicaOutputs, tf.Tensor]:
        """Returns outputs of a batch, and the version of the weights that they used.

        The version is the number of applied updates.
        """
        version = tf.zeros([], tf.int64)
        if self._update is not None:
            version = self._update.applied_updates()
        # The step reads its weights after the version. It may use newer weights than
        # the version says, never older ones.
        with tf.control_dependencies([version]):
            batch = tf.nest.map_structure(tf.identity, batch)
            with tf.device(self._device):
                return replica_step(batch), version

    def _apply(
        self, update: Update, summed: tuple[ReplicaOutputs, tf.Tensor]
    ) -> Mapping[str, tf.Tensor]:
        outputs, version = summed
        with tf.device(self._parameter_device):
            # Counted once the update is complete, as in `strategies.ps.async_worker`.
            with tf.control_dependencies([changes_of(lambda: update.apply(outputs))]):
                count = update.increment_step()
            return {STALENESS: count - 1 - version}


class _PendingPieces:
    """Pieces of a call that towers divide among themselves."""

    def __init__(
        self,
        tower_input: TowerInput,
        pieces: Sequence[_Piece],
        local_flags: SyncedFlags,
    ):
        self._input = tower_input
        self._local_flags = local_flags
        # Reversed, because `pop` takes the last.
        self._remaining = list(reversed(pieces))
        self._lock = threading.Lock()
        self._done: list[tuple[int, int, StepResults]] = []
        self._failure: BaseException | None = None

    def run(self, towers: Sequence[_Tower]) -> StepResults:
        """Runs a thread for each tower to the last piece, or until one ends early."""
        threads = [
            threading.Thread(target=self._work, args=(index, tower), daemon=True)
            for index, tower in enumerate(towers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        # Pieces may end in another order than that of their steps.
        ordered = sorted(self._done, key=lambda done: done[0])
        parts = [results for _, _, results in ordered]
        names = [f"tower-{index}" for _, index, _ in ordered]
        return join_results(parts, names, len(threads))

    def _work(self, index: int, tower: _Tower) -> None:
        try:
            while (piece := self._take()) is not None:
                results = tower.run(self._input, piece, self._local_flags)
                with self._lock:
                    self._done.append((piece.first_step, index, results))
                    # A value was not finite: no tower starts another piece.
                    if results.applied_steps < piece.num_steps:
                        self._remaining.clear()
        except BaseException as failure:
            with self._lock:
                self._failure = failure
                self._remaining.clear()

    def _take(self) -> _Piece | None:
        with self._lock:
            return self._remaining.pop() if self._remaining else None


def _pieces(
    first_step: int, num_steps: int, observe: SummaryLevel, num_towers: int
) -> list[_Piece]:
    """Divides the steps of a call into pieces; only the last step is observed."""
    # Rounded up, so that there are at most `_PIECES_PER_TOWER` pieces for each tower.
    length = max(1, -(-num_steps // (_PIECES_PER_TOWER * num_towers)))
    starts = range(0, num_steps, length)
    return [
        _Piece(
            first_step + start,
            min(length, num_steps - start),
            observe if start + length >= num_steps else SummaryLevel.NONE,
        )
        for start in starts
    ]
