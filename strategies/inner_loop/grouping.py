"""Groups of tensors that are sent together."""

from collections.abc import Collection, Sequence

import tensorflow as tf

from strategies.common.private_apis.graphs import run_after

# A collective of a few numbers takes as long as to copy some hundred kilobytes twice.
BUCKET_BYTES = 1 << 20


def grouped(
    tensors: Sequence[tuple[tf.DType, int]], bucket_bytes: int = BUCKET_BYTES
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


def size_with_parts_for_all(size: int, element_bytes: int, num_replicas: int) -> int:
    """Returns the smallest size, from `size` on, that gives each replica a part.

    A ring all-reduce divides the elements among the replicas.

    A replica whose part is empty only sends, and TensorFlow 2.21 notices a dead peer
    only while it receives: the others waited up to 7 s for the peer's heartbeat, and
    0.1 s with parts for all (tests/cluster/test_lost_peer.py).

    Args:
      size: Number of elements.
      element_bytes: Bytes of each.
      num_replicas: Number of replicas around the ring.
    """
    # TensorFlow rounds parts up to a multiple of 64 bytes, and a multiple to the next
    # (tensorflow/core/common_runtime/base_collective_executor.cc, `AlignedChunkElts`).
    # The last part has the rest.
    aligned = 64 // element_bytes

    def part(size: int) -> int:
        return (-(-size // num_replicas) // aligned + 1) * aligned

    while part(size) * (num_replicas - 1) >= size:
        size += 1
    return size


def compute_in_order(buffers: Sequence[tf.Tensor]) -> None:
    """Computes each buffer before the operations that only later buffers need.

    If several operations become ready at once, an executor with one thread runs one of
    them and stacks the others: the first on the stack is the last to run. The choice
    differs from start to start. If it ran the gradient of the layer before, the first
    buffer was ready last, and no computation was left to overlap with its sending. At
    1 Gbit/s two workers of one core each trained a convnet of 2.2 MB at 2,500 to 2,900
    or at 3,600 to 3,900 examples a second.

    The buffer is sent before the executor continues if an operation without cost lies
    in between. Cheap operations are run at once and put the others aside
    (tensorflow/core/common_runtime/executor.cc, `ExecutorState::ScheduleReady`).

    Args:
      buffers: Tensors of one graph that is being built, in the order of sending.
    """
    done: set[tf.Operation] = set()
    for index, buffer in enumerate(buffers):
        own = _ancestors(buffer.op, done)
        for operation in own:
            # The others wait for these. There are none for the first buffer.
            if any(tensor.op in done for tensor in operation.inputs):
                run_after(operation, buffers[index - 1].op)
        done |= own


def _ancestors(
    operation: tf.Operation, known: Collection[tf.Operation]
) -> set[tf.Operation]:
    """Returns an operation and all that it depends on, except known ones."""
    found: set[tf.Operation] = set()
    waiting = [operation]
    while waiting:
        each = waiting.pop()
        if each not in found and each not in known:
            found.add(each)
            waiting += [tensor.op for tensor in each.inputs]
            waiting += each.control_inputs
    return found
