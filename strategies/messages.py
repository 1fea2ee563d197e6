"""What goes from one task to another in one message where TensorFlow sends many.

A tensor that an operation takes from another task is a message of its own, which costs
both tasks about a tenth of a millisecond whatever its size: more than all of a small
model's arithmetic. So what one task has for another is put into one vector for each
type before it goes, and taken apart where it is needed. Rows of an embedding go as they
are: how many there are differs from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.parcel import Parcel


def read_here(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """The present values of variables that other tasks hold, on this one.

    Args:
      variables: each on one device.
    """
    values: list[Any] = [None] * len(variables)
    for device, positions in _by_device([v.device for v in variables]).items():
        with tf.device(device):
            held = [variables[position].read_value() for position in positions]
            parcel = Parcel.of(held)
            packed = parcel.pack(held)
        for position, value in zip(positions, parcel.unpack(packed), strict=True):
            values[position] = value
    return values


def sent(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Values of this task, each where it is needed.

    Args:
      values: tensors, IndexedSlices, and None for nothing.
      devices: of each.
    """
    there: list[Any] = [None] * len(values)
    for device, positions in _by_device(devices).items():
        present = [p for p in positions if values[p] is not None]
        parcel = Parcel.of([values[position] for position in present])
        packed = parcel.pack([values[position] for position in present])
        with tf.device(device):
            parts = parcel.unpack([tf.identity(component) for component in packed])
        for position, value in zip(present, parts, strict=True):
            there[position] = value
    return there


def _by_device(devices: Sequence[str]) -> dict[str, list[int]]:
    """The positions of each device's name."""
    found: dict[str, list[int]] = {}
    for position, device in enumerate(devices):
        found.setdefault(device, []).append(position)
    return found
