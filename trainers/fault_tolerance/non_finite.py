"""Diagnosis of non-finite values in a diverged step."""

import math

import keras
import numpy as np

from strategies.common.errors import DivergedError
from strategies.common.types import StepResults
from trainers.model.layer_state import LayerState


def describe_divergence(
    model: keras.Model, layer_state: LayerState, results: StepResults
) -> str:
    """Describes the values that were not finite in a step that was not applied.

    Returns:
      Beginning of a sentence. It names the first variable, in the model's order, whose
      gradient or value was not finite.
    """
    loss = float(results.sums["loss"][-1] / results.sums["examples"][-1])
    number = None if math.isfinite(loss) else f"the loss is {loss}"
    variable = _first_variable(model, layer_state, results.first_not_finite)
    if number is None and variable is None:
        # Of an earlier update of the step.
        return "a gradient is not finite at"
    if variable is None:
        return f"{number}, with all gradients and weights finite, at"
    found = f"{variable} is not finite"
    return f"{number} and {found} at" if number else f"{found} at"


def _first_variable(
    model: keras.Model, layer_state: LayerState, position: int | None
) -> str | None:
    found = {
        id(variable): f"the value of {variable.path}"
        for variable in _changed_by_training(model, layer_state)
        if not _is_finite(variable)
    }
    # Positions count the gradients first and the layer state after them, the order of
    # the flattened replica outputs.
    trained = model.trainable_variables
    if position is not None and position < len(trained):
        variable = trained[position]
        # A variable whose value is not finite already has an entry.
        found.setdefault(id(variable), f"the gradient of {variable.path}")
    elif position is not None:
        variable = layer_state.assigned[position - len(trained)]
        found.setdefault(id(variable), f"the new value of {variable.path}")
    # In the model's order, so that the earliest layer is named.
    in_order = (found.get(id(variable)) for variable in model.weights)
    return next((words for words in in_order if words is not None), None)


def _changed_by_training(
    model: keras.Model, layer_state: LayerState
) -> list[keras.Variable]:
    """Returns the weights that steps change, which have to be finite.

    A layer may keep infinite weights that no step changes, such as the mask of an
    attention.
    """
    assigned = {id(variable) for variable in layer_state.assigned}
    return [v for v in model.weights if v.trainable or id(v) in assigned]


def require_finite_weights(
    model: keras.Model, layer_state: LayerState, step: int
) -> None:
    """Checks that all weights that steps change are finite after a step.

    Raises:
      DivergedError: A weight is not finite.
    """
    # The loss only shows it at the next step, which is too late for a checkpoint.
    for weight in _changed_by_training(model, layer_state):
        if not _is_finite(weight):
            raise DivergedError(step, f"{weight.path} is not finite after")


def _is_finite(variable: keras.Variable) -> bool:
    """Returns whether all numbers of a variable are finite."""
    return bool(np.isfinite(variable.numpy()).all())
