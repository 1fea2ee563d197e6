"""Executions of several steps (`steps_per_execution`) in Keras's own `fit`.

Keras runs whole executions until its data ends. The data of a program ends after an
epoch; the data that `fit` gets here has the steps of all epochs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf


@contextlib.contextmanager
def whole_executions(
    model: keras.Model, num_steps: int, steps_per_epoch: int, most: int | None = None
) -> Iterator[None]:
    """Lets executions end where epochs and the training end, in the block.

    They have at most `most` steps, or as many as the program's.
    """
    compiled = model.steps_per_execution
    common = math.gcd(num_steps, steps_per_epoch)
    most = min(most or compiled, common)
    size = max(size for size in range(1, most + 1) if common % size == 0)
    model.steps_per_execution = size
    try:
        yield
    finally:
        model.steps_per_execution = compiled


def validation_in_executions(
    data: tf.data.Dataset, num_steps: int, model: keras.Model
) -> dict[str, Any]:
    """Returns the arguments of `fit` for a validation.

    Args:
      data: Batches of a validation, perhaps again and again.
      num_steps: Number of batches of one validation.
      model: Model with the number of steps of an execution.
    """
    if num_steps % model.steps_per_execution == 0:
        return {"validation_data": data, "validation_steps": num_steps}
    # The last execution has fewer steps, and ends with the data.
    return {"validation_data": data.take(num_steps)}
