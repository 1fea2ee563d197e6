"""Towers of one process that do not wait for each other.

Each tower has a thread of its own, in which it takes a global batch, reads the weights,
computes the gradient on its device, and applies it, whatever the others do meanwhile.
It is what TensorFlow 1 tutorials did with one `session.run` a thread, and the
asynchronous updates of parameter servers without servers (Niu et al., Hogwild!, 2011).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import (
    Agreed,
    Batch,
    GlobalBatches,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    StepResults,
    Update,
)
from strategies.inner_loop.input import ByIndex
from strategies.inner_loop.loop import InnerLoop, Step
from strategies.inner_loop.staleness import (
    REPORTED,
    apply_then_count,
    joined,
    read_then_compute,
)

# So many pieces for each tower are made of a call. At its end the others wait for the
# last piece, and between pieces a tower is in Python for a fraction of a millisecond.
_PIECES_PER_TOWER = 4


@dataclasses.dataclass(slots=True)
class TowerFeed:
    """The input of all towers.

    Attributes:
      resident: what batches are read from.
      batches: reads them.
      next_step: the step that is handed out next.
    """

    resident: Any
    batches: GlobalBatches
    next_step: int

    @classmethod
    def of(cls, batches: GlobalBatches) -> TowerFeed:
        return cls(next(iter(batches.resident())), batches, batches.first_step)


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive steps that one tower runs without coming back to Python."""

    first_step: int
    num_steps: int
    observe: Observe


class AsynchronousTowers:
    """Steps that towers share, each in its own thread. Satisfies `RunSteps`."""

    def __init__(
        self,
        devices: Sequence[str],
        parameter_device: str,
        replica_step: ReplicaStep,
        update: Update | None,
    ):
        """Traces nothing and starts no thread yet.

        Args:
          devices: of each tower.
          parameter_device: where the weights are.
          replica_step: computes the shares of a whole global batch.
          update: applies them; None to only add up.
        """
        self._towers = [
            _Tower(device, parameter_device, replica_step, update) for device in devices
        ]

    def trace(self, batches: TowerFeed) -> tf.Graph:
        """Traces every tower, and returns the graph of the first."""
        first, *_ = [tower.trace(batches) for tower in self._towers]
        return first

    def num_traces(self) -> int:
        return max(tower.loop.num_traces() for tower in self._towers)

    def __call__(
        self,
        batches: TowerFeed,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        # Tracing changes layers while it lasts, so that one thread does all of it.
        if not self.num_traces():
            self.trace(batches)
        pieces = _pieces(batches.next_step, num_steps, observe, len(self._towers))
        batches.next_step += num_steps
        return _UnderWay(self._towers, batches, pieces, proposed or Agreed())


class _Tower:
    """One tower: its own inner loop over whole global batches, on its own device."""

    def __init__(
        self,
        device: str,
        parameter_device: str,
        replica_step: ReplicaStep,
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
            input=ByIndex(self._batch_at),
            reported=() if update is None else REPORTED,
        )
        self.loop = InnerLoop(step, replica_step, update)

    def trace(self, feed: TowerFeed) -> tf.Graph:
        return self.loop.trace(self._input(feed, feed.next_step))

    def run(self, feed: TowerFeed, piece: _Piece, proposed: Agreed) -> StepResults:
        steps = self._input(feed, piece.first_step)
        return self.loop(steps, piece.num_steps, piece.observe, proposed).fetch()

    def _input(self, feed: TowerFeed, first_step: int) -> tuple[Any, tf.Tensor]:
        # Known when the loop is traced, with the first input; later inputs read alike.
        self._batches = self._batches or feed.batches
        return feed.resident, tf.constant(first_step, tf.int64)

    def _batch_at(self, steps: tuple[Any, tf.Tensor], index: tf.Tensor) -> Batch:
        if self._batches is None:
            raise RuntimeError("steps are traced before there is input")
        resident, first_step = steps
        step = first_step + tf.cast(index, tf.int64)
        return self._batches.at(resident, step, 0, 1)

    def _compute(
        self, replica_step: ReplicaStep, batch: Batch
    ) -> tuple[Shares, tf.Tensor]:
        def compute(batch: Batch) -> Shares:
            with tf.device(self._device):
                return replica_step(batch)

        if self._update is None:
            return compute(batch), tf.zeros([], tf.int64)
        return read_then_compute(self._update, compute, batch)

    def _apply(
        self, update: Update, summed: tuple[Shares, tf.Tensor]
    ) -> Mapping[str, tf.Tensor]:
        shares, version = summed
        with tf.device(self._parameter_device):
            return apply_then_count(update, lambda: update.apply(shares), version)


class _UnderWay:
    """Pieces that towers take one after the other. Satisfies `Pending`."""

    def __init__(
        self,
        towers: Sequence[_Tower],
        feed: TowerFeed,
        pieces: Sequence[_Piece],
        proposed: Agreed,
    ):
        """Starts one thread for each tower.

        They end with the pieces, or with the first one that ends early.
        """
        self._feed = feed
        self._proposed = proposed
        self._remaining = list(reversed(pieces))
        self._lock = threading.Lock()
        self._done: list[tuple[int, int, StepResults]] = []
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(index, tower), daemon=True)
            for index, tower in enumerate(towers)
        ]
        for thread in self._threads:
            thread.start()

    def fetch(self) -> StepResults:
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        ordered = sorted(self._done, key=lambda done: done[0])
        parts = [results for _, _, results in ordered]
        names = [f"tower-{index}" for _, index, _ in ordered]
        return joined(parts, names, len(self._threads))

    def _work(self, index: int, tower: _Tower) -> None:
        try:
            while (piece := self._take()) is not None:
                results = tower.run(self._feed, piece, self._proposed)
                with self._lock:
                    self._done.append((piece.first_step, index, results))
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
    first_step: int, num_steps: int, observe: Observe, num_towers: int
) -> list[_Piece]:
    """Divides a call; only its last step is looked at."""
    length = max(1, -(-num_steps // (_PIECES_PER_TOWER * num_towers)))
    starts = range(0, num_steps, length)
    return [
        _Piece(
            first_step + start,
            min(length, num_steps - start),
            observe if start + length >= num_steps else Observe.NOT,
        )
        for start in starts
    ]
