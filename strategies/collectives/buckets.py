"""Tensors that are sent together, in equal parts for each worker."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Elements of one flattened tensor that a worker holds, up to `stop`.

    The index is the position of the tensor.
    """

    index: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one type that are sent as one vector, in equal parts for each worker.

    Each tensor has an index, its position among all, and a shape.
    """

    indices: Sequence[int]
    shapes: Sequence[tf.TensorShape]
    dtype: tf.DType
    num_parts: int

    @property
    def _sizes(self) -> list[int]:
        return [shape.num_elements() for shape in self.shapes]

    @property
    def part_size(self) -> int:
        """Number of elements of a part; the last parts are filled up with zeros."""
        return -(-sum(self._sizes) // self.num_parts)

    def spans(self, part: int) -> list[Span]:
        """Returns the elements of a part, of the tensors that have any in it."""
        # A part ends within a tensor wherever its share of the elements ends: whole
        # tensors would not divide a network with one large matrix evenly.
        first, last = part * self.part_size, (part + 1) * self.part_size
        ends = list(itertools.accumulate(self._sizes))
        found = []
        for index, size, end in zip(self.indices, self._sizes, ends, strict=True):
            begin = end - size
            start, stop = max(first - begin, 0), min(last - begin, size)
            if start < stop:
                found.append(Span(index, start, stop))
        return found

    def pack(self, tensors: Iterable[tf.Tensor]) -> tf.Tensor:
        """Returns the bucket's tensors as one vector of all parts."""
        return self._filled(tensors, self.num_parts * self.part_size)

    def pack_part(self, slices: Iterable[tf.Tensor]) -> tf.Tensor:
        """Returns the slices of one part's spans as a vector."""
        return self._filled(slices, self.part_size)

    def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Returns the bucket's tensors from a vector of all parts."""
        sizes = self._sizes
        # The rest of the last parts is padding, which no tensor has.
        missing = self.num_parts * self.part_size - sum(sizes)
        pieces = tf.split(vector, [*sizes, missing])[: len(sizes)]
        return [
            tf.reshape(piece, shape)
            for piece, shape in zip(pieces, self.shapes, strict=True)
        ]

    def _filled(self, tensors: Iterable[tf.Tensor], size: int) -> tf.Tensor:
        """Returns tensors behind each other as a vector, with zeros up to a size."""
        pieces = [tf.reshape(tensor, [-1]) for tensor in tensors]
        missing = size - sum(piece.shape[0] for piece in pieces)
        if missing:
            pieces.append(tf.zeros([missing], self.dtype))
        # A copy of a single tensor would gain nothing.
        return pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=0)


def unpack_part(part: tf.Tensor, spans: Sequence[Span]) -> list[tf.Tensor]:
    """Returns the slices of a part, one for each of its spans."""
    sizes = [span.stop - span.start for span in spans]
    return tf.split(part, [*sizes, part.shape[0] - sum(sizes)])[: len(sizes)]
