"""Groups of tensors that are sent together."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def grouped(
    tensors: Sequence[tuple[tf.DType, int]], bucket_bytes: int
) -> list[list[int]]:
    """Returns the positions of tensors by bucket, the last tensor in the first bucket.

    The backward pass computes the gradients of the last layers first, so that the first
    bucket is complete while those of earlier layers are still computed. The order is
    the same on all workers, because it depends on the model alone.

    Args:
      tensors: Type and number of elements of each tensor, in the order of the layers.
      bucket_bytes: Size at which a bucket is complete. A larger tensor is not divided.
    """
    buckets: list[list[int]] = []
    filled: dict[tf.DType, tuple[list[int], int]] = {}
    for index in reversed(range(len(tensors))):
        dtype, size = tensors[index]
        bucket, present = filled.get(dtype, ([], 0))
        if not bucket:
            buckets.append(bucket)
        bucket.append(index)
        present += size * dtype.size
        filled[dtype] = ([], 0) if present >= bucket_bytes else (bucket, present)
    return buckets
