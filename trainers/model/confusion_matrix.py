"""Confusion matrix: counted on the devices, drawn as an image."""

import importlib.metadata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from models.objective import ClassPredictions
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
_RIGHT, _WRONG = np.array([20, 110, 50]), np.array([190, 30, 30])


def confusion_of(classes: ClassPredictions, batch: Batch) -> tf.Tensor:
    """Counts the rows by true and predicted class.

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
    num_classes = len(counts)
    has_numbers = num_classes <= _MOST_WITH_NUMBERS
    cell, font_pixels = (52, 11) if has_numbers else (12, 9)
    font = _font(font_pixels)
    # A class without examples has a row of zeros.
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The root keeps a few errors visible: 1 % has a tenth of the depth.
    depth = np.sqrt(fractions)[:, :, np.newaxis]
    is_right = np.eye(num_classes, dtype=bool)[:, :, np.newaxis]
    colors = 255 * (1 - depth) + depth * np.where(is_right, _RIGHT, _WRONG)
    cells = colors.round().astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
    labels = [_shortened(str(name)) for name in names or range(num_classes)]
    margin = 3 * font_pixels + round(max(font.getlength(label) for label in labels))
    picture = _with_labels(cells, labels, font, margin)
    if not has_numbers:
        return np.asarray(picture)
    draw = ImageDraw.Draw(picture)
    for row, column in np.argwhere(counts):
        fraction = fractions[row, column]
        draw.multiline_text(
            (margin + (column + 0.5) * cell, (row + 0.5) * cell),
            f"{fraction:.0%}\n{counts[row, column]:,}",
            fill="white" if fraction > 0.5 else "black",
            font=font,
            anchor="mm",
            align="center",
        )
    return np.asarray(picture)


def _font(pixels: int) -> ImageFont.FreeTypeFont:
    """Returns the font of matplotlib's charts, which has most alphabets."""
    # Found and not imported: to import matplotlib takes 0.1 s.
    package = importlib.metadata.distribution("matplotlib")
    path = package.locate_file("matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf")
    return ImageFont.truetype(str(path), pixels)


def _with_labels(
    cells: np.ndarray, labels: Sequence[str], font: ImageFont.FreeTypeFont, margin: int
) -> Image.Image:
    """Returns the cells with the names of classes and axes to the left and below."""
    size = len(cells)
    picture = Image.new("RGB", (size + margin, size + margin), "white")
    picture.paste(Image.fromarray(cells), (margin, 0))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((margin, 0, margin + size - 1, size), outline="black")
    # Text below is drawn from left to right and turned.
    below = Image.new("RGB", (margin, size), "white")
    draw_below = ImageDraw.Draw(below)
    cell, gap = size / len(labels), font.size / 2
    for index, label in enumerate(labels):
        middle = (index + 0.5) * cell
        draw.text((margin - gap, middle), label, "black", font, anchor="rm")
        draw_below.text((margin - gap, middle), label, "black", font, anchor="rm")
    picture.paste(below.transpose(Image.Transpose.ROTATE_90), (margin, size))
    axis = (margin + size / 2, size + margin - gap)
    draw.text(axis, "predicted class", "black", font, anchor="mb")
    beside = Image.new("RGB", (size, 2 * int(font.size)), "white")
    words = ImageDraw.Draw(beside)
    words.text((size / 2, gap), "true class", "black", font, anchor="mt")
    picture.paste(beside.transpose(Image.Transpose.ROTATE_90), (0, 0))
    return picture


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"
