"""The user's `replica_step(model, batch)`, which replaces loss and metrics."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from models.base import (
    EvalOutputs,
    Objective,
    Predict,
    Totals,
    Values,
    means_over_examples,
)
from strategies.common.errors import UsageError

NAME = "replica_step"


class WholeModelObjective:
    """Members that objectives share which call the whole model by themselves."""

    __slots__ = ()

    @property
    def title(self) -> str:
        """Name of the step in messages."""
        return NAME

    @property
    def compiled(self) -> None:
        """See `Objective`; `keras.Model.compile` takes no such step."""
        return None

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


@dataclasses.dataclass(frozen=True, slots=True)
class OwnObjective(WholeModelObjective):
    """An objective from a user's function; satisfies `Objective`.

    Attributes:
      function: Function of a model, a `strategies.common.types.Batch` of n examples and
        optionally `training`. It returns the loss of each example, [n], or the `loss`
        and each metric by name.
      evaluation: Objective for evaluation, if the function has no parameter `training`;
        None to evaluate with the function.
    """

    function: Callable[..., Any]
    evaluation: Objective | None

    def values(self, model: Predict, batch: Any, training: bool) -> Values:
        """Returns the `loss` and each metric per example; see `Objective`."""
        if self.evaluation is not None:
            if not training:
                return self.evaluation.values(model, batch, training)
            return _by_name(self.function(model, batch))
        return _by_name(self.function(model, batch, training=training))

    def judged(self, model: Predict, batch: Any) -> EvalOutputs:
        """Evaluates a batch; see `Objective`.

        With a user's function there are no classes: its predictions are unknown.
        """
        if self.evaluation is not None:
            return self.evaluation.judged(model, batch)
        return EvalOutputs(self.values(model, batch, training=False), None)

    @property
    def has_layer_losses(self) -> bool:
        """See `Objective`."""
        return False

    @property
    def totals(self) -> Totals | None:
        """See `Objective`."""
        return None if self.evaluation is None else self.evaluation.totals

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """See `Objective`."""
        if self.evaluation is not None:
            return self.evaluation.results(sums)
        return means_over_examples(sums)


def own_objective(
    function: Callable[..., Any], make_objective: Callable[[], Objective]
) -> OwnObjective:
    """Returns an objective from a user's function.

    Args:
      function: Function as in `OwnObjective`.
      make_objective: Function that makes the objective for evaluation, if `function`
        has no parameter `training`.

    Raises:
      UsageError: The function has no such parameter, and there is no loss for
        evaluation.
    """
    # A function with `training` computes the metrics of evaluation too.
    if "training" in inspect.signature(function).parameters:
        return OwnObjective(function, None)
    try:
        return OwnObjective(function, make_objective())
    except UsageError as error:
        raise UsageError(
            f"{NAME} is not told whether it trains or evaluates: give it a third "
            f"parameter, {NAME}(model, batch, training), or add --loss to "
            "evaluate "
            "with."
        ) from error


def _by_name(returned: Any) -> Mapping[str, tf.Tensor]:
    """Returns the loss and metrics of a user's function by name, each of shape [n].

    Raises:
      UsageError: There is no loss, or a value is not one number per example.
    """
    # A tensor alone is the loss.
    values = returned if isinstance(returned, Mapping) else {"loss": returned}
    if "loss" not in values:
        raise UsageError(
            f"{NAME} returned {', '.join(values) or 'nothing'}, and no 'loss'."
        )
    values = {name: tf.convert_to_tensor(value) for name, value in values.items()}
    # A mean over the shard cannot be weighted by the examples of the global batch.
    wrong = [name for name, value in values.items() if value.shape.rank != 1]
    if wrong:
        raise UsageError(
            f"{NAME} returned {wrong[0]!r} of shape {values[wrong[0]].shape}, and one "
            "number of each example of the batch is needed, without a mean."
        )
    return values
