"""Tensors in buckets, and buckets in equal parts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.buckets import Bucket, unpack_part
from strategies.inner_loop.grouping import grouped, size_with_parts_for_all


def test_buckets_are_in_the_order_of_the_backward_pass_by_type() -> None:
    """Large tensors are alone, because they need no copy then."""
    tensors = [(tf.float32, 3), (tf.float64, 1), (tf.float32, 9), (tf.float32, 1)]
    assert grouped(tensors, 16) == [[2], [3, 0], [1]]
    assert grouped(tensors, 1) == [[3], [2], [1], [0]]
    assert sorted(grouped(tensors, 1 << 20)) == [[1], [3, 2, 0]]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 40])
def test_parts_are_equal_and_have_every_element_once(num_parts: int) -> None:
    shapes = [tf.TensorShape(shape) for shape in ([4, 3], [], [7], [2, 1, 5])]
    bucket = Bucket([5, 4, 1, 0], shapes, tf.float64, num_parts)
    tensors = [
        tf.reshape(tf.range(float(s.num_elements())) + 100 * i, s)
        for i, s in enumerate(shapes)
    ]
    tensors = [tf.cast(tensor, tf.float64) for tensor in tensors]
    vector = bucket.pack(tensors)
    assert vector.shape == [num_parts * bucket.part_size]
    for got, want in zip(bucket.unpack(vector), tensors, strict=True):
        np.testing.assert_array_equal(got, want)
    seen = []
    for part, values in enumerate(tf.split(vector, num_parts)):
        spans = bucket.spans(part)
        slices = unpack_part(values, spans)
        np.testing.assert_array_equal(bucket.pack_part(slices), values)
        for span, piece in zip(spans, slices, strict=True):
            whole = tf.reshape(tensors[bucket.indices.index(span.index)], [-1])
            np.testing.assert_array_equal(whole[span.start : span.stop], piece)
            seen += [(span.index, e) for e in range(span.start, span.stop)]
    sizes = zip(bucket.indices, shapes, strict=True)
    assert sorted(seen) == sorted(
        (i, e) for i, s in sizes for e in range(s.num_elements())
    )


@pytest.mark.parametrize(
    ("size", "num_replicas", "expected"),
    [
        # Parts of 16 and of 1 elements.
        *((1, 2, 17), (16, 2, 17), (17, 2, 17)),
        # 16 elements for each would be 64 bytes, which become 128, and one part of 32.
        (32, 2, 33),
        # 48 and 16 elements.
        (64, 2, 64),
        # Two parts of 16, and one of 1.
        (1, 3, 33),
        (1_000_000, 64, 1_000_000),
        # One replica has all, whatever it is.
        *((0, 1, 1), (5, 1, 5)),
    ],
)
def test_small_sums_are_filled_up_until_all_have_a_part(
    size: int, num_replicas: int, expected: int
) -> None:
    assert size_with_parts_for_all(size, 4, num_replicas) == expected
