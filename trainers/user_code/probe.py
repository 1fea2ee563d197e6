"""Labels of a few examples, and predictions such as a model makes of them."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from models.objective import predictions_of
from strategies.common.private_apis.models import mask_of
from strategies.common.types import Batch
from trainers.user_code import PerBatchError
from trainers.user_code.few_examples import rows_of
from trainers.user_code.fixed_rows import shapes_of

# Two examples several times: losses of pairs need pairs of one label and of two. It is
# rarely the size of another axis, with which labels of too few axes would agree.
_NUM_ROWS = 7


class Probe(NamedTuple):
    """A few examples for the objective of a model.

    Attributes:
      labels: Labels, in which an example is repeated.
      predictions: Tensors of the shapes and dtypes of the model's predictions, with
        values drawn from (0, 1).
      is_masked: True if some of the model's predictions have a mask.
    """

    labels: Any
    predictions: Any
    is_masked: bool


def probe(model: keras.Model, batch: Batch) -> Probe:
    """Returns labels and predictions of seven examples, made of one or two.

    The model is traced, in training and without, and not run: on a cluster its
    variables may be on servers. Its errors appear here and not in the first step.

    Raises:
      PerBatchError: An output has another first axis than that of the examples.
    """
    first_axes = {shape[:1] for shape in shapes_of(model, "inputs")}
    for shape in shapes_of(model, "outputs"):
        if shape[:1] not in first_axes:
            raise PerBatchError(
                f"an output of the model has the shape {list(shape)}, whose first axis "
                "is not that of the examples: give the program that calls fit as "
                "--script."
            )
    specs, is_masked = _specs(model, batch)
    count = tf.nest.flatten(batch.labels)[0].shape[0]
    rows = [index % count for index in range(_NUM_ROWS)]
    drawn = [_drawn(spec, index) for index, spec in enumerate(tf.nest.flatten(specs))]
    predictions = tf.nest.pack_sequence_as(specs, drawn)
    return Probe(rows_of(batch.labels, rows), predictions, is_masked)


def _specs(model: keras.Model, batch: Batch) -> tuple[Any, bool]:
    """Returns predictions for a batch, without values if possible, and masks or not."""
    masks: list[bool] = []

    def trace(features: Any) -> Any:
        with keras.StatelessScope():
            predictions_of(model, features, training=False)
        with keras.StatelessScope():
            predictions = predictions_of(model, features, training=True)
        masks.extend(mask_of(p) is not None for p in tf.nest.flatten(predictions))
        return predictions

    function = tf.function(trace, autograph=False)
    specs = function.get_concrete_function(batch.features).structured_outputs
    if all(s.shape[1:].is_fully_defined() for s in tf.nest.flatten(specs)):
        return specs, any(masks)
    with keras.StatelessScope():
        return predictions_of(model, batch.features, training=False), any(masks)


def _drawn(spec: Any, index: int) -> tf.Tensor:
    shape = [_NUM_ROWS, *spec.shape[1:]]
    if not spec.dtype.is_floating:
        return tf.zeros(shape, spec.dtype)
    drawn = tf.random.stateless_uniform(shape, [18, index], 0.1, 0.9)
    return tf.cast(drawn, spec.dtype)
