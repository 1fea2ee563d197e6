"""What goes from one task to another in one message where TensorFlow sends many.

A tensor that an operation takes from another task is a message of its own, which costs
both tasks about a tenth of a millisecond whatever its size: more than all of a small
model's arithmetic. So all that one task has for another at a time goes as one vector of
bytes, whatever the types, and is taken apart where it is needed. What is large goes by
itself: to put it into a vector and take it out again costs more than a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Copied twice on either side, so many bytes take as long as a message, on a core that
# copies some gigabytes a second.
_LARGE_BYTES = 1 << 18


def read_here(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """The present values of variables that other tasks hold, on this one.

    Args:
      variables: each on one device.
    """
    values: list[Any] = [None] * len(variables)
    for device, positions in _by_device([v.device for v in variables]).items():
        with tf.device(device):
            held = {p: variables[p].read_value() for p in positions}
            small = {p: v for p, v in held.items() if not _is_large(v)}
            letter = _packed([*small.values()]) if small else None
        values_here = {p: tf.identity(v) for p, v in held.items() if p not in small}
        if letter is not None:
            parts = _unpacked(letter, [*small.values()])
            values_here.update(zip(small, parts, strict=True))
        for position, value in values_here.items():
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
        present = {p: values[p] for p in positions if values[p] is not None}
        small = {p: v for p, v in present.items() if not _is_large(v)}
        letter = _packed([*small.values()]) if small else None
        with tf.device(device):
            for position, value in present.items():
                if position not in small:
                    there[position] = tf.identity(value)
            if letter is None:
                continue
            parts = _unpacked(tf.identity(letter), [*small.values()])
        for position, value in zip(small, parts, strict=True):
            there[position] = value
    return there


def _packed(values: Sequence[Any]) -> tf.Tensor:
    """Values as bytes: uint8 [n], first how many rows each IndexedSlices has."""
    counts = [tf.shape(v.indices, tf.int64) for v in values if _is_sparse(v)]
    return tf.concat([_bytes(t) for t in (*counts, *_tensors(values))], axis=0)


def _unpacked(letter: tf.Tensor, values: Sequence[Any]) -> list[Any]:
    """The values again, of the types and shapes of those that were packed."""
    num_sparse = sum(map(_is_sparse, values))
    head = num_sparse * tf.int64.size
    counts = iter(tf.unstack(_of_bytes(letter[:head], tf.int64), num_sparse))
    shapes: list[Any] = []
    for value in values:
        if _is_sparse(value):
            count = next(counts)
            shapes += [[count], [count, *value.values.shape[1:]]]
        else:
            shapes.append(value.shape)
    tensors = list(_tensors(values))
    sizes = [
        _size(shape) * _on_the_wire(tensor.dtype).size
        for shape, tensor in zip(shapes, tensors, strict=True)
    ]
    parts = iter(
        tf.reshape(_of_bytes(part, tensor.dtype), shape)
        for part, tensor, shape in zip(
            tf.split(letter[head:], sizes, num=len(sizes)), tensors, shapes, strict=True
        )
    )
    return [_put_together(value, parts) for value in values]


def _put_together(value: Any, parts: Iterator[tf.Tensor]) -> Any:
    if not _is_sparse(value):
        return next(parts)
    indices, rows = next(parts), next(parts)
    rows = tf.ensure_shape(rows, value.values.shape)
    shape = tf.constant(value.shape.as_list(), tf.int64)
    return tf.IndexedSlices(rows, indices, shape)


def _tensors(values: Sequence[Any]) -> Iterator[tf.Tensor]:
    for value in values:
        if _is_sparse(value):
            yield from (value.indices, value.values)
        else:
            yield value


def _bytes(tensor: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(tf.cast(tensor, _on_the_wire(tensor.dtype)), [-1])
    return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _of_bytes(vector: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    wire = _on_the_wire(dtype)
    if wire.size > 1:
        vector = tf.reshape(vector, [-1, wire.size])
    return tf.cast(tf.bitcast(vector, wire), dtype)


def _on_the_wire(dtype: tf.DType) -> tf.DType:
    """A truth value has no bits that could be taken as they are."""
    return tf.uint8 if dtype == tf.bool else dtype


def _size(shape: Any) -> Any:
    """Numbers in a shape, of which the first length may be a tensor."""
    size = 1
    for length in shape:
        size *= length
    return tf.cast(size, tf.int64) if tf.is_tensor(size) else np.int64(size)


def _is_large(value: Any) -> bool:
    """Whether a tensor is known to be."""
    if _is_sparse(value) or not value.shape.is_fully_defined():
        return False
    return value.shape.num_elements() * value.dtype.size >= _LARGE_BYTES


def _is_sparse(value: Any) -> bool:
    return isinstance(value, tf.IndexedSlices)


def _by_device(devices: Sequence[str]) -> dict[str, list[int]]:
    """The positions of each device's name."""
    found: dict[str, list[int]] = {}
    for position, device in enumerate(devices):
        found.setdefault(device, []).append(position)
    return found
