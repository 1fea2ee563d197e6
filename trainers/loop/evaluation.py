"""Loss and metrics over the whole held-out set, exact for any size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from strategies.base import Strategy
from strategies.common.types import ReplicaStep
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source
from trainers.model.confusion_matrix import CONFUSION

# The same in every process, whatever its speed: their sums are joined step by step.
_STEPS_PER_CALL = 100
# To open the input takes 49 of the 55 ms of processor time of an evaluation of the
# digits, so it stays open for the next one. A larger data set takes longer to evaluate
# than to open, and the batches that are read ahead would occupy memory.
_MOST_BYTES_KEPT_OPEN = 16 << 20


class Evaluated(NamedTuple):
    """What an evaluation came to.

    Attributes:
      means: loss and metrics over every example exactly once; nan where one is not
        finite.
      confusion: int64 [classes, classes], how many examples of the class of a row were
        taken for that of a column; None where the model is no classifier, its classes
        are more than `trainers.model.confusion_matrix.MOST_CLASSES`, or a mean is not finite.
    """

    means: dict[str, float]
    confusion: np.ndarray | None


class Evaluation:
    """Evaluates the model's present weights under the run's strategy."""

    def __init__(
        self,
        strategy: Strategy,
        eval_step: ReplicaStep,
        source: Source,
        global_batch_size: int,
    ):
        """Compiles nothing yet: that happens in the first `run`.

        Args:
          strategy: divides batches among its replicas.
          eval_step: sums of one replica's rows.
          source: the examples.
          global_batch_size: examples at a time, over all replicas.
        """
        self._strategy = strategy
        order = Order(
            num_examples=source.num_examples,
            global_batch_size=min(global_batch_size, source.num_examples),
            seed=None,
        )
        self._num_steps = order.steps_per_epoch
        self._stays_open = _is_small(source)
        self._batches = SourceBatches(
            source=source,
            order=order,
            first_step=0,
            last_step=self._num_steps,
            repeats=self._stays_open,
        )
        self._opened: Any = None
        self._run_steps = strategy.compile(eval_step, update=None)

    def run(self) -> Evaluated:
        """Goes over all examples with the weights of now."""
        # An evaluation that is interrupted leaves its input in the middle: the next one
        # opens it anew.
        batches, self._opened = self._opened, None
        if batches is None:
            batches = self._strategy.distribute(self._batches)
        sums: Counter[str] = Counter()
        tables: list[np.ndarray] = []
        step = 0
        while step < self._num_steps:
            count = min(_STEPS_PER_CALL, self._num_steps - step)
            results = self._run_steps(batches, count).fetch()
            summed = dict(results.sums)
            table = summed.pop(CONFUSION, None)
            if results.applied_steps < count:
                means = {name: math.nan for name in summed if name != "examples"}
                return Evaluated(means, None)
            if table is not None:
                tables.append(table.sum(axis=0))
            sums.update({name: values.sum() for name, values in summed.items()})
            step += count
        if self._stays_open:
            self._opened = batches
        confusion = np.sum(tables, axis=0).astype(np.int64) if tables else None
        return Evaluated(means_over_examples(sums), confusion)

    def num_traces(self) -> int:
        """How often its inner loop was traced."""
        return self._run_steps.num_traces()


def _is_small(source: Source) -> bool:
    if source.example_bytes is None:
        return False
    return source.example_bytes * source.num_examples <= _MOST_BYTES_KEPT_OPEN


def means_over_examples(sums: Mapping[str, float]) -> dict[str, float]:
    """Numerators divided by their common denominator, `examples`."""
    examples = sums["examples"]
    return {
        name: float(value / examples)
        for name, value in sums.items()
        if name != "examples"
    }
