"""Packing of many tensors into one message between tasks.

A tensor that an operation takes from another task is a separate message. A message
costs both tasks about a tenth of a millisecond at any size, more than all arithmetic of
a small model. All values that one task sends to another at one time therefore travel as
one vector of bytes. Large tensors travel unpacked, because copying them twice costs
more than a message.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Two copies of this many bytes on each side take as long as a message, on a core that
# copies some gigabytes a second.
_LARGE_BYTES = 1 << 18


def read_here(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Returns present values of variables on other tasks, as tensors on this task."""
    values: list[Any] = [None] * len(variables)
    for device, positions in _by_device([v.device for v in variables]).items():
        # Reading and packing happen on the other task, unpacking on this task. Every
        # tensor that crosses between the two is one message.
        with tf.device(device):
            held = {p: variables[p].read_value() for p in positions}
            small = {p: v for p, v in held.items() if not _is_large(v)}
            buffer = _packed([*small.values()]) if small else None
        values_here = {p: tf.identity(v) for p, v in held.items() if p not in small}
        if buffer is not None:
            parts = _unpacked(buffer, [*small.values()])
            values_here.update(zip(small, parts, strict=True))
        for position, value in values_here.items():
            values[position] = value
    return values


def sent(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns values of this task on the devices that need them.

    Args:
      values: Tensors, IndexedSlices, or None.
      devices: Device of each value.
    """
    there: list[Any] = [None] * len(values)
    for device, positions in _by_device(devices).items():
        present = {p: values[p] for p in positions if values[p] is not None}
        small = {p: v for p, v in present.items() if not _is_large(v)}
        buffer = _packed([*small.values()]) if small else None
        with tf.device(device):
            for position, value in present.items():
                if position not in small:
                    there[position] = tf.identity(value)
            if buffer is None:
                continue
            # The identity is on the other task, so that one message brings the vector.
            parts = _unpacked(tf.identity(buffer), [*small.values()])
        for position, value in zip(small, parts, strict=True):
            there[position] = value
    return there


def _packed(values: Sequence[Any]) -> tf.Tensor:
    """Returns values as one vector, uint8 [bytes]."""
    # The numbers of rows of all IndexedSlices come first: the receiver does not know
    # them.
    counts = [tf.shape(v.indices, tf.int64) for v in values if _is_sparse(v)]
    return tf.concat([_bytes(t) for t in (*counts, *_tensors(values))], axis=0)


def _unpacked(buffer: tf.Tensor, values: Sequence[Any]) -> list[Any]:
    """Returns the values of a packed vector, with the types and shapes of `values`."""
    num_sparse = sum(map(_is_sparse, values))
    head = num_sparse * tf.int64.size
    counts = iter(tf.unstack(_of_bytes(buffer[:head], tf.int64), num_sparse))
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
            tf.split(buffer[head:], sizes, num=len(sizes)), tensors, shapes, strict=True
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
    # A bitcast of [n] to a smaller type is [n, bytes of the type].
    return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _of_bytes(vector: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    wire = _on_the_wire(dtype)
    if wire.size > 1:
        vector = tf.reshape(vector, [-1, wire.size])
    return tf.cast(tf.bitcast(vector, wire), dtype)


def _on_the_wire(dtype: tf.DType) -> tf.DType:
    """Returns the type that values of a type are sent as."""
    # `tf.bitcast` does not take bool.
    return tf.uint8 if dtype == tf.bool else dtype


def _size(shape: Any) -> Any:
    """Returns the number of elements of a shape; its first length may be a tensor."""
    size = 1
    for length in shape:
        size *= length
    return tf.cast(size, tf.int64) if tf.is_tensor(size) else np.int64(size)


def _is_large(value: Any) -> bool:
    """Returns whether a tensor is large; false if its size is unknown."""
    if _is_sparse(value) or not value.shape.is_fully_defined():
        return False
    return value.shape.num_elements() * value.dtype.size >= _LARGE_BYTES


def _is_sparse(value: Any) -> bool:
    return isinstance(value, tf.IndexedSlices)


def _by_device(devices: Sequence[str]) -> dict[str, list[int]]:
    """Returns the positions of each device in a list of devices."""
    found: dict[str, list[int]] = {}
    for position, device in enumerate(devices):
        found.setdefault(device, []).append(position)
    return found


class ResultPacking:
    """Packing of tensors of any shape and type into one vector of strings."""

    def __init__(self) -> None:
        self._types: list[tf.DType] = []

    def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns tensors as one vector, in a graph."""
        self._types = [tensor.dtype for tensor in tensors]
        return tf.stack([tf.io.serialize_tensor(tensor) for tensor in tensors])

    def unpack(self, packed: np.ndarray) -> list[np.ndarray]:
        """Returns the values of tensors that `pack` has packed."""
        return [
            tf.io.parse_tensor(value, dtype).numpy()
            for value, dtype in zip(packed, self._types, strict=True)
        ]
