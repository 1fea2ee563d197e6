"""Confusion matrix: counted on the devices, drawn as an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.base import ClassPredictions
from strategies.common.types import Batch
from strategies.inner_loop.sharding import row_weights

# Tag in TensorBoard; metrics.jsonl prefixes the name with eval_.
CONFUSION_MATRIX = "confusion_matrix"
# Key among the sums of an evaluation. The slash keeps it apart from the metrics of a
# user's model, whose names have none.
CONFUSION = "counts/confusion"
# 100 classes need 80 KB of float64 counts a step.
MOST_CLASSES = 100

_MOST_WITH_NUMBERS = 20
_MOST_CHARACTERS = 14
# Of the names of classes and axes.
_MARGIN_INCHES = 1.5
_RIGHT, _WRONG = np.array([20, 110, 50]), np.array([190, 30, 30])


def confusion_of(classes: ClassPredictions, batch: Batch) -> tf.Tensor:
    """Counts the rows by true and predicted class.

    Args:
      classes: True and predicted class of each row of the batch.
      batch: Batch that marks the rows that count.

    Returns:
      float64 [classes, classes]; rows are true classes, columns are predicted classes.
    """
    labels = tf.one_hot(classes.labels, classes.num_classes)
    predictions = tf.one_hot(classes.predictions, classes.num_classes)
    # [rows, 1]; 0 for padding rows.
    weights = row_weights(batch, labels[:, 0])[:, tf.newaxis]
    # Exact in float32, which represents every integer up to 2^24; a shard has fewer
    # rows.
    counts = tf.matmul(weights * labels, predictions, transpose_a=True)
    return tf.cast(counts, tf.float64)


def draw_confusion(counts: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
    """Draws each count as a cell whose color deepens with its fraction of the row.

    With up to 20 classes each cell also shows the fraction in percent and the count.

    Args:
      counts: int64 [classes, classes]; rows are true classes, columns are predicted
        classes.
      names: Names of the classes; None to number them.

    Returns:
      uint8 [height, width, 3].
    """
    # Imported late: a run that draws nothing does not wait for matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_classes = len(counts)
    has_numbers = num_classes <= _MOST_WITH_NUMBERS
    cell, font_size = (0.52, 8) if has_numbers else (0.12, 5)
    # A class without examples has a row of zeros.
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The root keeps a few errors visible: 1 % has a tenth of the depth.
    depth = np.sqrt(fractions)[:, :, np.newaxis]
    is_right = np.eye(num_classes, dtype=bool)[:, :, np.newaxis]
    size = cell * num_classes + _MARGIN_INCHES
    figure = Figure(figsize=(size, size), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = 1 - depth + depth * np.where(is_right, _RIGHT, _WRONG) / 255
    axes.imshow(colors, interpolation="nearest")
    labels = [_shortened(str(name)) for name in names or range(num_classes)]
    axes.set_xticks(range(num_classes), labels, rotation=90, fontsize=font_size)
    axes.set_yticks(range(num_classes), labels, fontsize=font_size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    for row, column in np.argwhere(counts) if has_numbers else ():
        fraction = fractions[row, column]
        axes.text(
            column,
            row,
            f"{fraction:.0%}\n{counts[row, column]:,}",
            color="white" if fraction > 0.5 else "black",
            fontsize=font_size,
            ha="center",
            va="center",
        )
    canvas.draw()
    return np.array(canvas.buffer_rgba())[:, :, :3]


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"
