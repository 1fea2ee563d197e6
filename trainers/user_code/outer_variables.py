"""Keras variables that a step assigns, and what it assigns to them is lost.

A step runs in a `keras.StatelessScope`, and what the variables of the model and of its
metrics are assigned there is kept. Any other would have its old value in each step:
`check_assigned` refuses it. An evaluation keeps metrics alone.
"""

from collections.abc import Sequence
from typing import Any

import keras

from strategies.common.errors import UsageError
from trainers.model.random_numbers.seeds import is_seed_state


class AssignmentScope(keras.StatelessScope):
    """Scope that records the variables that are assigned in it.

    Attributes:
      assigned: The variables, in the order of their assignments.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.assigned: list[keras.Variable] = []

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Keeps the new value of a variable, and records the variable."""
        super().add_update(update)
        self.assigned.append(update[0])


def check_assigned(
    scope: AssignmentScope,
    model: keras.Model,
    metrics: Sequence[keras.metrics.Metric] = (),
) -> None:
    """Refuses a step that has assigned a variable of neither the model nor a metric.

    Raises:
      UsageError: The step has assigned such a variable in the scope.
    """
    of_metrics = [variable for metric in metrics for variable in metric.variables]
    known = {id(variable) for variable in [*model.variables, *of_metrics]}
    for variable in scope.assigned:
        # A run computes these counters itself (`keyed_states`).
        if id(variable) not in known and not is_seed_state(variable):
            raise UsageError(
                f"the variable {variable.path!r} of shape {variable.shape} is assigned "
                "in a step, and neither the model nor one of its metrics has it, so "
                "that replicas would not keep its value: make it with "
                "add_weight(trainable=False) of a layer or the model, name a metric in "
                "the model's metrics, or assign it in a callback."
            )


def remark_on_evaluation(
    scope: AssignmentScope, metrics: Sequence[keras.metrics.Metric] = ()
) -> str | None:
    """Returns a warning if an evaluation has assigned a variable of no metric."""
    of_metrics = {id(variable) for metric in metrics for variable in metric.variables}
    names = {
        variable.path: None
        for variable in scope.assigned
        if id(variable) not in of_metrics and not is_seed_state(variable)
    }
    if not names:
        return None
    return (
        f"the model assigns {', '.join(map(repr, names))} without training, too: in "
        "fit a validation changes it for the training after it, and here it does not; "
        "assign it only if training"
    )
