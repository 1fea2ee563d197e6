"""Confusion matrix: counted on the devices, drawn as an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

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
_CELL_PIXELS = 52
_SMALL_CELL_PIXELS = 12
_FONT_PIXELS = 13
_SMALL_FONT_PIXELS = 9
_GAP_PIXELS = 6
_MOST_CHARACTERS = 14
_ROWS, _COLUMNS = "is", "taken for"
_RIGHT, _WRONG = np.array([20, 110, 50]), np.array([190, 30, 30])
_INK, _PAPER, _GRID = (30, 30, 30), (255, 255, 255), (225, 225, 225)

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


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
    The function uses Pillow, because the import of matplotlib would take half a second.

    Args:
      counts: int64 [classes, classes]; rows are true classes, columns are predicted
        classes.
      names: Names of the classes; None to number them.

    Returns:
      uint8 [height, width, 3].
    """
    num_classes = len(counts)
    has_numbers = num_classes <= _MOST_WITH_NUMBERS
    cell = _CELL_PIXELS if has_numbers else _SMALL_CELL_PIXELS
    font = ImageFont.load_default(_FONT_PIXELS if has_numbers else _SMALL_FONT_PIXELS)
    words = [_shortened(str(n)) for n in names or range(num_classes)]
    widest = max(font.getlength(word) for word in [*words, _COLUMNS])
    margin = round(widest) + 3 * _GAP_PIXELS
    image = _draw_cells(counts, margin, cell, font if has_numbers else None)
    middles = [margin + cell * (index + 0.5) for index in range(num_classes)]
    draw = ImageDraw.Draw(image)
    draw.text((_GAP_PIXELS, margin - _GAP_PIXELS), _ROWS, _INK, font, anchor="ls")
    for word, middle in zip(words, middles, strict=True):
        draw.text((margin - _GAP_PIXELS, middle), word, _INK, font, anchor="rm")
    # Column names are vertical. Pillow writes only horizontal text, so the image is
    # rotated, annotated at its right edge and rotated back.
    turned = image.transpose(Image.Transpose.ROTATE_270)
    draw, left = ImageDraw.Draw(turned), turned.width - margin + _GAP_PIXELS
    draw.text((left, margin - _GAP_PIXELS), _COLUMNS, _INK, font, anchor="ls")
    for word, middle in zip(words, middles, strict=True):
        draw.text((left, middle), word, _INK, font, anchor="lm")
    return np.asarray(turned.transpose(Image.Transpose.ROTATE_90))


def _draw_cells(
    counts: np.ndarray, margin: int, cell: int, font: _Font | None
) -> Image.Image:
    """Draws the cells without class names.

    Args:
      counts: int64 [classes, classes].
      margin: Width of the left and upper margins, in pixels.
      cell: Width of a cell, in pixels.
      font: Font of the numbers in the cells; None for cells without numbers.
    """
    size = margin + cell * len(counts) + _GAP_PIXELS
    image = Image.new("RGB", (size, size), _PAPER)
    draw = ImageDraw.Draw(image)
    # A class without examples has a row of zeros.
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row, column in np.ndindex(*counts.shape):
        left, top = margin + cell * column, margin + cell * row
        share, count = float(shares[row, column]), int(counts[row, column])
        colour = _colour(share, _RIGHT if row == column else _WRONG)
        draw.rectangle((left, top, left + cell, top + cell), colour, _GRID)
        if font is not None and count:
            ink = _PAPER if share > 0.5 else _INK
            middle = (left + cell / 2, top + cell / 2)
            text = f"{share:.0%}\n{count:,}"
            draw.text(middle, text, ink, font, anchor="mm", align="center")
    return image


def _colour(share: float, full: np.ndarray) -> tuple[int, ...]:
    """Returns the color of a cell.

    Args:
      share: Fraction of the row's examples in the cell, from 0 to 1.
      full: Color of the fraction 1.
    """
    # The root keeps a few errors visible: 1 % has a tenth of the depth.
    depth = share**0.5 if share < 1 else 1.0
    return tuple(np.uint8((1 - depth) * np.array(_PAPER) + depth * full).tolist())


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"
