"""Loss and metrics over the whole held-out set, exact for any size."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from strategies.base import ReplicaStep, Strategy
from trainers.confusion import CONFUSION
from trainers.inputs.data import Source
from trainers.inputs.order import Order
from trainers.inputs.source_batches import SourceBatches
from trainers.interval import means_over_examples

# The same in every process, whatever its speed: their sums are joined step by step.
_STEPS_PER_CALL = 100


class Evaluated(NamedTuple):
    """What an evaluation came to.

    Attributes:
      means: loss and metrics over every example exactly once; nan where one is not
        finite.
      confusion: int64 [classes, classes], how many examples of the class of a row were
        taken for that of a column; None where the model is no classifier, its classes
        are more than `trainers.confusion.MOST_CLASSES`, or a mean is not finite.
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
        self._source = source
        self._order = Order(
            num_examples=source.num_examples,
            global_batch_size=min(global_batch_size, source.num_examples),
            seed=None,
        )
        self._run_steps = strategy.compile(eval_step, update=None)

    def run(self) -> Evaluated:
        """Goes over all examples with the weights of now."""
        num_steps = self._order.steps_per_epoch
        batches = self._strategy.distribute(
            SourceBatches(
                source=self._source,
                order=self._order,
                first_step=0,
                last_step=num_steps,
            )
        )
        sums: Counter[str] = Counter()
        tables: list[np.ndarray] = []
        step = 0
        while step < num_steps:
            count = min(_STEPS_PER_CALL, num_steps - step)
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
        confusion = np.sum(tables, axis=0).astype(np.int64) if tables else None
        return Evaluated(means_over_examples(sums), confusion)

    def num_traces(self) -> int:
        """How often its inner loop was traced."""
        return self._run_steps.num_traces()
