"""Keras's own `fit` of a program: the loss of its batches, and its executions."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.replaced import replaced, replaced_in
from trainers.user_code.own_step.reported import all_metrics


class LossOfFit:
    """Mean loss of the batches since it was last read.

    The metric of `fit` adds up the losses of an epoch. A difference of two sums has
    lost digits of a small loss: with equal weights, the eighth batch of a series in
    order of time differed by 4e-14 in float64. So a second mean sees the same values.
    """

    def __init__(self, model: keras.Model, name: str | None):
        """Finds the metric that keeps the loss by its name; None if none does."""
        self._metrics = [
            metric
            for metric in all_metrics(model)
            if metric.name == name and isinstance(metric, keras.metrics.Mean)
        ]
        # `fit` resets the metrics of the model at each epoch, and not this one.
        self._mean = keras.metrics.Mean()

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Passes the values of the metric to the second mean, in the block.

        The step has to be traced there: that of a lent model has no trace before.
        """
        with contextlib.ExitStack() as block:
            for metric in self._metrics:
                both = self._both(metric, metric.update_state)
                block.enter_context(replaced_in(metric, "update_state", both))
            yield

    def take(self) -> float | None:
        """Returns the mean since the last call; None if no metric keeps the loss."""
        if not self._mean.count.numpy():
            return None
        mean = float(self._mean.result())
        self._mean.reset_state()
        return mean

    def _both(self, metric: keras.metrics.Mean, update: Any) -> Any:
        def update_both(*args: Any, **kwargs: Any) -> Any:
            # A metric of labels and predictions computes the values that it averages.
            empty = [(v, keras.ops.zeros_like(v)) for v in metric.variables]
            with keras.StatelessScope(empty) as scope:
                update(*args, **kwargs)
            for own, variable in zip(
                self._mean.variables, metric.variables, strict=True
            ):
                own.assign_add(
                    keras.ops.cast(scope.get_current_value(variable), own.dtype)
                )
            return update(*args, **kwargs)

        return update_both


def whole_executions(
    model: keras.Model, num_steps: int, steps_per_epoch: int, most: int | None = None
) -> AbstractContextManager[None]:
    """Lets executions of several steps end where epochs and the training end.

    Keras runs whole executions (`steps_per_execution`) until its data ends. The data of
    a program ends after an epoch; the data that `fit` gets here has the steps of all
    epochs. In the block executions have at most `most` steps, or the program's number.
    """
    common = math.gcd(num_steps, steps_per_epoch)
    most = min(most or model.steps_per_execution, common)
    size = max(size for size in range(1, most + 1) if common % size == 0)
    return replaced(model, ["steps_per_execution"], lambda *_: size)


def validation_in_executions(
    data: tf.data.Dataset, num_steps: int, model: keras.Model
) -> dict[str, Any]:
    """Returns the arguments of `fit` for a validation of `num_steps` batches.

    The data may have them again and again.
    """
    if num_steps % model.steps_per_execution == 0:
        return {"validation_data": data, "validation_steps": num_steps}
    # The last execution has fewer steps, and ends with the data.
    return {"validation_data": data.take(num_steps)}
