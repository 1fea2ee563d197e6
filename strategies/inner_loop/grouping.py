"""Groups of tensors that are sent together."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def grouped(
    tensors: Sequence[tuple[tf.DType, int]], bucket_bytes: int
) -> list[list[int]]:
    """Returns the positions of tensors by bucket, in the order of the backward pass.

    The backward pass computes the gradients of the last layers first, so that the first
    bucket is complete while gradients of earlier layers are still computed. The order
    is the same on all workers, because it depends on the model alone.

    Args:
      tensors: Type and number of elements of each tensor, in the order of the layers.
      bucket_bytes: Size at which a bucket is complete. A tensor of this size or larger
        has a bucket by itself, so that it need not be copied into one and out again.
    """
    complete: list[list[int]] = []
    filled: dict[tf.DType, tuple[list[int], int]] = {}
    # Types do not mix: a vector has one, and no gradient is sent in another one.
    for index in reversed(range(len(tensors))):
        dtype, size = tensors[index]
        if size * dtype.size >= bucket_bytes:
            complete.append([index])
            continue
        bucket, present = filled.pop(dtype, ([], 0))
        bucket.append(index)
        present += size * dtype.size
        if present >= bucket_bytes:
            complete.append(bucket)
        else:
            filled[dtype] = bucket, present
    return [*complete, *(bucket for bucket, _ in filled.values())]
