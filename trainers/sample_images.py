"""A grid of sample images with what the model takes them for."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

_TILE_PIXELS = 64
_CAPTION_PIXELS = 14
_PER_ROW = 8
_RIGHT = (20, 110, 50)
_WRONG = (190, 30, 30)


def draw_grid(
    images: np.ndarray, labels: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """Draws images in rows, each with its label, or label and wrong prediction.

    Args:
      images: [n, height, width, channels] with 1 or 3 channels; each is stretched
        from its own smallest to its own largest value.
      labels: int64 [n].
      predictions: int64 [n].

    Returns:
      uint8 [grid height, grid width, 3].
    """
    rows = -(-len(images) // _PER_ROW)
    width = _TILE_PIXELS * min(len(images), _PER_ROW)
    height = (_TILE_PIXELS + _CAPTION_PIXELS) * rows
    grid = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(grid)
    for index, image in enumerate(images):
        row, column = divmod(index, _PER_ROW)
        left = column * _TILE_PIXELS
        top = row * (_TILE_PIXELS + _CAPTION_PIXELS)
        grid.paste(_tile(image), (left, top + _CAPTION_PIXELS))
        right = labels[index] == predictions[index]
        caption = (
            str(labels[index])
            if right
            else f"{labels[index]}, not {predictions[index]}"
        )
        draw.text((left + 2, top + 1), caption, fill=_RIGHT if right else _WRONG)
    return np.asarray(grid)


def can_draw(input_shape: tuple[int, ...]) -> bool:
    """Whether examples of this shape are pictures."""
    return len(input_shape) == 3 and input_shape[-1] in (1, 3)


def _tile(image: np.ndarray) -> Image.Image:
    low, high = float(image.min()), float(image.max())
    pixels = np.uint8(255 * (image - low) / max(high - low, 1e-9))
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    size = (_TILE_PIXELS - 2, _TILE_PIXELS - 2)
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
