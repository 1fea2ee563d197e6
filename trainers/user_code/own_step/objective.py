"""The objective of a model that trains, evaluates or computes its loss by itself.

Keras's own `train_step` and `test_step` call what a class overrides: `compute_loss`,
`compute_metrics` or the steps themselves. Each replica runs them on its shard, inside
of an `UpdateCatcher`. Metrics start from nothing in each step, and what a shard adds to
their variables is summed over replicas.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, NamedTuple

import keras

from models.objective import LATEST, Values, means_over_examples
from strategies.common.errors import UsageError
from trainers.model.random_numbers.seeds import keyed_states, seed_states
from trainers.user_code.own_step.model_step import (
    STATE,
    ModelStep,
    regularized_weights,
)
from trainers.user_code.own_step.reported import Computed


class OwnUpdate(NamedTuple):
    """One update of a step: an optimizer and the variables that it updates."""

    optimizer: keras.optimizers.Optimizer
    variables: Sequence[keras.Variable]


def passes_of(updates: Sequence[OwnUpdate], reads_after: Set[int]) -> list[slice]:
    """Divides the updates of a step into groups, one for each computation.

    Updates of different optimizers share one, such as an optimizer for each part of a
    model, unless the step uses a changed weight between them. If it uses one after the
    last update, it is computed once more, without an update.

    Args:
      updates: Updates, in order.
      reads_after: Numbers of updates after which the step uses a changed weight.
    """
    count = len(updates)
    starts = [0]
    for index in range(1, count):
        former = [id(update.optimizer) for update in updates[starts[-1] : index]]
        if index in reads_after or id(updates[index].optimizer) in former:
            starts.append(index)
    if count in reads_after:
        starts.append(count)
    return [slice(*pair) for pair in itertools.pairwise([*starts, count])]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnStep:
    """The steps of a model and what they report. Satisfies `Objective`.

    Attributes:
      train: Its `train_step`.
      test: Its `test_step`; None without examples to evaluate on.
      is_sum: True if gradients are sums over a batch, and not means.
      has_sparse_gradients: True if a gradient has only some rows of its variable.
      updates: Updates of a step, in order.
      passes: Updates of each computation of a step, which is computed again for updates
        that need what an earlier one has changed; see `passes_of`.
      rows: Only number of examples that a step computes; None if it takes any.
      normalizes: True if a layer normalizes over the examples of a batch.
      remark: Warning if several replicas train otherwise than one; None for none.
      remark_of_any: Warning if one replica, too, trains otherwise than `fit`.
      evaluation_remark: Warning about variables that an evaluation assigns.
    """

    train: ModelStep
    test: ModelStep | None
    is_sum: bool
    has_sparse_gradients: bool
    updates: Sequence[OwnUpdate]
    passes: Sequence[slice]
    rows: int | None
    normalizes: bool
    remark: str | None
    remark_of_any: str | None
    evaluation_remark: str | None
    # Not fields: see `Objective`; `keras.Model.compile` takes no such step.
    classes = compiled = totals = None
    has_layer_losses = True

    @property
    def num_passes(self) -> int:
        """Number of computations of a step."""
        return len(self.passes)

    @property
    def calls_of_first(self) -> int:
        """Number of times that a step calls the optimizer that it calls first."""
        first = self.updates[0].optimizer
        return sum(update.optimizer is first for update in self.updates)

    @property
    def title(self) -> str:
        """Class and name of the step, for messages."""
        return f"{type(self.train.model).__name__}.{self.train.name}"

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Values:
        """See `Objective`."""
        raise UsageError(
            f"{self.title} calls the whole model, which model_parallel has in stages: "
            "choose another --strategy."
        )

    def values(self, model: Any, batch: Any, training: bool) -> Values:
        """See `Objective`."""
        step = self.train if training else self.test
        if step is None:
            raise RuntimeError("there are no examples to evaluate on")
        # An evaluation, whose batches draw other numbers each.
        keyed = keyed_states(seed_states(step.model), 0, batch)
        scope, logs = step.run(batch, [*keyed, *regularized_weights(step.model)])
        return step.values(batch, scope, logs)

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """See `Objective`."""
        others = {
            name: value
            for name, value in sums.items()
            if STATE not in name and not name.startswith(LATEST)
        }
        return {**means_over_examples(others), **self._step_of(sums).results(sums)}

    def metric_state(
        self, sums: Mapping[str, Any]
    ) -> Sequence[tuple[keras.Variable, Any]]:
        """See `Objective`."""
        return self._step_of(sums).metric_state(sums)

    def _step_of(self, sums: Mapping[str, Any]) -> ModelStep:
        if self.test is None:
            return self.train
        of_test = (f"{self.test.name}/", f"{LATEST}{self.test.name}/")
        is_test = any(name.startswith(of_test) for name in sums)
        return self.test if is_test else self.train


def reported_names(objective: Any, training: bool) -> Collection[str] | None:
    """Returns the names that a step of the model's own reports; None for all."""
    if not isinstance(objective, OwnStep):
        return None
    step = objective.train if training else objective.test
    return None if step is None else step.sources.keys()


def loss_name_of(objective: Any) -> str:
    """Returns the name that the loss has in the logs of `fit`."""
    return objective.train.loss_name if isinstance(objective, OwnStep) else "loss"


def loss_metric_of(objective: Any) -> str | None:
    """Returns the name of the metric that keeps the loss; None if none does."""
    if not isinstance(objective, OwnStep):
        return "loss"
    source = objective.train.sources.get(objective.train.loss_name)
    if source is None or isinstance(source, Computed):
        return None
    return objective.train.metrics[source[0]].metric.name
