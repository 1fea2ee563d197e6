"""The loss of each output of a model, for each example."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import AsCompiled, Summed
from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import OutputLoss, losses_by_output
from trainers.user_code.counting_metric import STATE
from trainers.user_code.unreduced import RowWeights, Unreduced, num_rows, of_rows


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one output, for each example.

    Attributes:
      resolved: The loss as Keras resolves it.
      key: Name of its sums. Outputs without names, as of a subclassed model, may have
        losses of one name.
    """

    resolved: OutputLoss
    key: str

    @property
    def name(self) -> str:
        return self.resolved.name

    @property
    def title(self) -> str:
        return f"the loss {self.resolved.loss.name!r}"

    @property
    def weight(self) -> float | None:
        return self.resolved.weight

    def __call__(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        weights: Any = None,
        total: Any = None,
    ) -> tf.Tensor:
        """Returns values [n] whose mean over the global batch is Keras's loss.

        Args:
          labels: Labels of n examples.
          predictions: Predictions for the same examples.
          global_size: Examples of the global batch; None if these are all.
          weights: Sample weights; None for 1 each.
          total: Sum of `weight_of_rows` over the global batch; None if these are all.
        """
        loss = self.resolved.loss
        unreduced = self.resolved.computed_by(Unreduced(loss))
        values = unreduced(labels, predictions, weights)
        of_rows_weight = self.weight_of_rows(labels, predictions, weights)
        if of_rows_weight is None and loss.reduction != "sum":
            return of_rows(tf.reduce_mean, values, predictions, self.title)
        summed = of_rows(tf.reduce_sum, values, predictions, self.title)
        size = num_rows(predictions) if global_size is None else global_size
        size = tf.cast(size, summed.dtype)
        if of_rows_weight is None:
            return size * summed
        total = tf.reduce_sum(of_rows_weight) if total is None else total
        return summed * tf.math.divide_no_nan(size, tf.cast(total, summed.dtype))

    def weight_of_rows(
        self, labels: Any, predictions: Any, weights: Any
    ) -> tf.Tensor | None:
        """Returns the weight of each example in a mean, [n]; None for equal ones."""
        counting = RowWeights(self.resolved.loss)
        counted = self.resolved.computed_by(counting)(labels, predictions, weights)
        return counted if counting.is_needed else None

    def reduced(self, labels: Any, predictions: Any) -> tf.Tensor:
        """Returns the loss of the batch as `fit` has it, without its weight."""
        return self.resolved.computed_by(self.resolved.loss)(labels, predictions)


def losses_of(
    compiled: AsCompiled,
    names: Sequence[str] | None,
    labels: Any,
    predictions: Any,
    model: keras.Model | None,
) -> Sequence[Loss]:
    """Returns the losses that a model was compiled with.

    Args:
      compiled: Arguments of `compile`.
      names: Names of the model's outputs; None if they are not known.
      labels: Labels of a few examples.
      predictions: Predictions for the same examples.
      model: Model of a program, whose own running means are to be used; None without
        one.

    Raises:
      UsageError: No loss is of an output, or an output has several.
    """
    _check_outputs(compiled.loss, names, labels, predictions)
    resolved = losses_by_output(
        compiled.loss, compiled.loss_weights, names, labels, predictions, model
    )
    if not resolved:
        raise UsageError("no loss is of an output of the model: give one.")
    if len(resolved) > 1 and not tf.nest.is_nested(predictions):
        raise UsageError(
            f"the model has one output and {len(resolved)} losses, of which fit "
            "minimizes the first alone: give one loss."
        )
    keys = [f"{one.name}_loss" for one in resolved]
    # As `fit` does, the last one of a name is reported by it.
    for position, key in enumerate(keys):
        if key in keys[position + 1 :]:
            keys[position] = f"{key}_{position}"
    return [Loss(*pair) for pair in zip(resolved, keys, strict=True)]


def _check_outputs(
    loss: Any, names: Sequence[str] | None, labels: Any, predictions: Any
) -> None:
    """Refuses losses and labels that do not fit the outputs of a model.

    Keras reports them as objects of a wrong type, if at all.
    """
    of_names = isinstance(predictions, Mapping)
    if isinstance(loss, (list, tuple)) and tf.nest.is_nested(predictions):
        counts = len(predictions), len(loss)
        # Of outputs in a list the last ones may have no loss.
        if counts[0] < counts[1] or (of_names and counts[0] != counts[1]):
            raise UsageError(
                f"the model has {counts[0]} outputs, and a list of {counts[1]} losses: "
                "give one of each output (None for no loss), or a dict by output."
            )
    if isinstance(loss, Mapping) and not (names or of_names):
        raise UsageError(
            "no loss is of an output of the model: there are losses of "
            f"{', '.join(loss)}, and its output has no name: give one loss."
        )
    if not (of_names and isinstance(labels, Mapping)):
        return
    wanted = loss if isinstance(loss, Mapping) else predictions
    for output in wanted:
        if output not in labels:
            raise UsageError(
                f"the data has no labels of output {output!r}; it has labels of "
                f"{', '.join(labels)}: name both alike."
            )


# Ends of the names of sums: of the losses of batches, and of the number of batches.
_TOTAL, _COUNT = f"{STATE}total", f"{STATE}count"


def sums_over_batches(
    losses: Mapping[str, tf.Tensor], global_size: tf.Tensor | int
) -> dict[str, Summed]:
    """Returns a replica's part of each loss of a global batch, and of one batch.

    Keras weighs the total loss of a batch by its examples, and the loss of one output
    not, because a batch has no known size in a graph (keras/src/trainers/
    compile_utils.py, `CompileLoss.call`).

    Args:
      losses: Values [n] by name, whose mean over the global batch is its loss.
      global_size: Examples of the global batch.
    """
    found = {}
    size = tf.cast(global_size, tf.float64)
    for name, values in losses.items():
        rows = tf.cast(values, tf.float64)
        found[name + _TOTAL] = Summed(tf.reduce_sum(rows) / size)
        found[name + _COUNT] = Summed(tf.reduce_sum(tf.ones_like(rows)) / size)
    return found


def total_and_count(sums: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Returns the sum of a loss over batches, and the number of batches."""
    return sums[name + _TOTAL], sums[name + _COUNT]
