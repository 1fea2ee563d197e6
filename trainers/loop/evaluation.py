"""Evaluation: loss and metrics over the whole held-out set.

The means are exact for any number of examples.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from models.objective import add_steps
from strategies.base import Strategy
from strategies.common.types import BoundedInput, LoopFunction
from trainers.inputs.batches import batches_of
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source
from trainers.model.confusion_matrix import CONFUSION

# Fixed, so that it is equal in every process regardless of speed: the processes' sums
# are reduced step by step.
_STEPS_PER_CALL = 100

# Opening the input takes 49 of the 55 ms of processor time of an evaluation of the
# digits, so the input of a small data set stays open for the next one. A larger data
# set takes longer to evaluate than to open, and batches that are read ahead occupy
# memory.
_MOST_BYTES_KEPT_OPEN = 16 << 20

BatchObserver = Callable[[int, Mapping[str, float] | None], bool]


class Evaluated(NamedTuple):
    """Result of an evaluation.

    Attributes:
      means: Loss and metrics over every example exactly once, as in logs of `fit`. One
        example whose value is not finite makes the mean of that value infinite or nan.
      confusion: int64 [classes, classes], number of examples by true class (row) and
        predicted class (column). None if the model is no classifier, has more than
        `trainers.model.confusion_matrix.MOST_CLASSES` classes, or the loss is not
        finite.
    """

    means: dict[str, Any]
    confusion: np.ndarray | None


class Evaluation:
    """Evaluation of the model's current weights under the run's strategy.

    Attributes:
      num_examples: Number of held-out examples; not to be run with none.
      num_steps: Number of their batches.
      batches: Batches of them, in the order of the source.
    """

    def __init__(
        self,
        strategy: Strategy,
        run_steps: LoopFunction,
        source: Source,
        global_batch_size: int,
        results: Callable[[Mapping[str, Any]], dict[str, Any]],
    ):
        """Prepares the evaluation; the first `run` compiles it.

        Args:
          strategy: Strategy that divides batches among its replicas.
          run_steps: Loop of the strategy that sums over replicas, without an update.
          source: Examples to evaluate on.
          global_batch_size: Examples per step, over all replicas.
          results: Function from sums over all examples to the loss and metrics.
        """
        self.num_examples = source.num_examples
        self._results = results
        self._strategy = strategy
        order = Order(
            num_examples=source.num_examples,
            global_batch_size=max(min(global_batch_size, source.num_examples), 1),
            # In the order of the source: evaluation does not shuffle.
            seed=None,
        )
        self.num_steps = order.steps_per_epoch
        self._stays_open = _is_small(source)
        self.batches = batches_of(
            source, order, 0, self.num_steps, repeats=self._stays_open
        )
        self._opened: Any = None
        self._run_steps = run_steps

    def run(
        self, on_batch: BatchObserver | None = None, batches_per_call: int = 1
    ) -> Evaluated:
        """Evaluates all examples with the present weights.

        Args:
          on_batch: Function of the index of a batch and results. It is called before
            some batches with the index of the first and None, and after them with the
            index of the last and the means so far: True ends the evaluation there. None
            for no function.
          batches_per_call: Number of batches between two calls of `on_batch`. The index
            of the last batch is counted as if each call had this number, as in Keras.
        """
        # An evaluation that is interrupted leaves its input in the middle: the next one
        # opens it anew.
        batches, self._opened = self._opened, None
        if batches is None:
            batches = self._strategy.distribute(self.batches)
        sums: dict[str, Any] = {}
        tables: list[np.ndarray] = []
        step = 0
        most = batches_per_call if on_batch else _STEPS_PER_CALL
        while step < self.num_steps:
            end = step - step % most + most
            count = min(end, self.num_steps) - step
            if isinstance(batches, BoundedInput):
                count = min(count, batches.steps_left())
            if on_batch and not step % most:
                on_batch(step, None)
            results = self._run_steps(batches, count)
            summed = dict(results.sums)
            table = summed.pop(CONFUSION, None)
            if table is not None:
                # [steps, classes, classes] -> [classes, classes].
                tables.append(table.sum(axis=0))
            add_steps(sums, summed)
            step += count
            at_end = step in (end, self.num_steps)
            if on_batch and at_end and on_batch(end - 1, self._results(sums)):
                break
        if self._stays_open and step == self.num_steps:
            self._opened = batches
        means = self._results(sums)
        # Predictions that are not numbers have no class.
        if not tables or not math.isfinite(means["loss"]):
            return Evaluated(means, None)
        return Evaluated(means, np.sum(tables, axis=0).astype(np.int64))

    def num_traces(self) -> int:
        """Returns the number of traces of the inner loop."""
        return self._run_steps.num_traces()


def _is_small(source: Source) -> bool:
    if source.example_bytes is None:
        return False
    return source.example_bytes * source.num_examples <= _MOST_BYTES_KEPT_OPEN
