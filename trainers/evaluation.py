"""Loss and metrics over the whole held-out set, exact for any size."""

from __future__ import annotations

import math
from collections import Counter

from strategies.base import ReplicaStep, Strategy
from trainers.inputs.data import Source
from trainers.inputs.order import Order
from trainers.inputs.source_batches import SourceBatches
from trainers.interval import means_over_examples

# The same in every process, whatever its speed: their sums are joined step by step.
_STEPS_PER_CALL = 100


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

    def run(self) -> dict[str, float]:
        """Means over every example exactly once; nan where one is not finite."""
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
        step = 0
        while step < num_steps:
            count = min(_STEPS_PER_CALL, num_steps - step)
            results = self._run_steps(batches, count).fetch()
            if results.applied_steps < count:
                return {name: math.nan for name in results.sums if name != "examples"}
            sums.update({name: values.sum() for name, values in results.sums.items()})
            step += count
        return means_over_examples(sums)

    def num_traces(self) -> int:
        """How often its inner loop was traced."""
        return self._run_steps.num_traces()
