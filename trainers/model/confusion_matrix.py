"""Which classes a model takes for which: counted where it runs, drawn for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from models.base import Classes
from strategies.common.types import Batch
from strategies.inner_loop.sharding import row_weights

# Its tag in TensorBoard; in metrics.jsonl eval_ comes before it.
CONFUSION_MATRIX = "confusion_matrix"
# Among the sums of an evaluation, where a metric of a user's own has no such name.
CONFUSION = "counts/confusion"
# A hundred are 80 KB of counts a step, and cells of ten pixels.
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


def confusion_of(classes: Classes, batch: Batch) -> tf.Tensor:
    """How many rows of each class were taken for which, float64 [classes, classes].

    A row of the table is the class that examples are of, a column what they were taken
    for. The counts of a share are exact: single precision has numbers up to 2^24.

    Args:
      classes: of each row of the batch.
      batch: which of the rows count.
    """
    labels = tf.one_hot(classes.labels, classes.num_classes)
    predictions = tf.one_hot(classes.predictions, classes.num_classes)
    weights = row_weights(batch, labels[:, 0])[:, tf.newaxis]
    counts = tf.matmul(weights * labels, predictions, transpose_a=True)
    return tf.cast(counts, tf.float64)


def draw_confusion(counts: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
    """Draws each count on a colour that is deeper the more of its row's class it is.

    Up to 20 classes cells say the share in percent and the count as well. Without
    matplotlib, which would take half a second to be imported.

    Args:
      counts: int64 [classes, classes]; rows are what examples are, columns what they
        were taken for.
      names: of the classes; None to number them.

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
    # Names of columns stand upright: they are written at the right of the picture when
    # that is turned.
    turned = image.transpose(Image.Transpose.ROTATE_270)
    draw, left = ImageDraw.Draw(turned), turned.width - margin + _GAP_PIXELS
    draw.text((left, margin - _GAP_PIXELS), _COLUMNS, _INK, font, anchor="ls")
    for word, middle in zip(words, middles, strict=True):
        draw.text((left, middle), word, _INK, font, anchor="lm")
    return np.asarray(turned.transpose(Image.Transpose.ROTATE_90))


def _draw_cells(
    counts: np.ndarray, margin: int, cell: int, font: _Font | None
) -> Image.Image:
    """The table without names; numbers in it if there is a font for them."""
    size = margin + cell * len(counts) + _GAP_PIXELS
    image = Image.new("RGB", (size, size), _PAPER)
    draw = ImageDraw.Draw(image)
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
    """Of few mistakes, too, something is to be seen."""
    depth = share**0.5 if share < 1 else 1.0
    return tuple(np.uint8((1 - depth) * np.array(_PAPER) + depth * full).tolist())


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"
