"""Private names of collective operations."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Types that `CollectiveBcastSendV2` takes (tensorflow/core/ops/collective_ops.cc).
_BROADCAST_TYPES = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def make_variables_of_all_types(
    strategy: tf.distribute.MultiWorkerMirroredStrategy,
) -> None:
    """Makes a strategy create variables of types that it cannot broadcast, too.

    It broadcasts the chief's initial value of each variable. For bfloat16 and int8, as
    of a quantized model, the operation is refused (tensorflow/python/distribute/
    collective_all_reduce_strategy.py, `_get_variable_creator_initial_value`). Such a
    variable begins with this process's own value.
    """
    extended = strategy.extended
    usual = extended._get_variable_creator_initial_value

    def initial_value_of(**given: Any) -> Callable[[], tf.Tensor]:
        if given["replica_id"] != 0:
            return usual(**given)

        def initial_value() -> tf.Tensor:
            own = given["initial_value"]
            value = tf.convert_to_tensor(
                own() if callable(own) else own, given.get("dtype")
            )
            if value.dtype not in _BROADCAST_TYPES:
                return value
            return usual(**{**given, "initial_value": value})()

        return initial_value

    extended._get_variable_creator_initial_value = initial_value_of


def local_replica(context: tf.distribute.ReplicaContext) -> int:
    """Returns the index of the calling replica in its process.

    The public id is a tensor. `ReplicaContext.devices` fails on all processes but the
    first, because it takes the index among all replicas for one of this process.
    """
    return int(context._replica_id)


def gather_by_key(
    context: tf.distribute.ReplicaContext,
    value: tf.Tensor,
    key: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the tensors of all replicas, one behind the other.

    `ReplicaContext.all_gather` and `all_reduce` take the key of a collective when the
    outermost function is called, so that all iterations of a loop share it
    (tensorflow/python/distribute/cross_device_utils.py, `_next_instance_key`). It
    keeps the shape that a key has first had, and refuses another one (tensorflow/core/
    common_runtime/collective_param_resolver_local.cc, "Shape mismatch"). So a loop
    cannot gather tensors whose shape differs from step to step. `all_gather` also
    gathers the shapes first, by a collective that tensors of one shape do not need. The
    operation is public (`tf.raw_ops.CollectiveGatherV2`). What it shares with the
    strategy's own collectives is not: the group, and the token that orders them on a
    device.

    Args:
      context: Context of the calling replica of a `MultiWorkerMirroredStrategy`.
      value: Tensor, of one shape on all replicas.
      key: int32 scalar, the same on all replicas, and always of tensors of this shape
        and type. From 2 ** 30 on, which TensorFlow does not use: it counts from 100.
        None for TensorFlow's next key, where the shape does not change.
    """
    return _collective(tf.raw_ops.CollectiveGatherV2, context, value, key)


def exchange_rows(context: tf.distribute.ReplicaContext, rows: tf.Tensor) -> tf.Tensor:
    """Returns row r of all replicas' [replicas, ...] tensors on replica r, in order."""
    # Added up, they are a reduce-scatter, for which TensorFlow has no implementation on
    # CPUs: `CollectiveReduceScatterV2` exists, and fails there (tensorflow/core/
    # common_runtime/collective_param_resolver_local.cc, `GetCollectiveName`).
    return _collective(tf.raw_ops.CollectiveAllToAllV2, context, rows)


def _collective(
    operation: Callable[..., tf.Tensor],
    context: tf.distribute.ReplicaContext,
    value: tf.Tensor,
    key: tf.Tensor | None = None,
) -> tf.Tensor:
    extended = context.strategy.extended
    launcher = extended._cross_device_ops._launchers[local_replica(context)]
    options = launcher._options
    with tf.device(launcher._device):
        return operation(
            input=value,
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=launcher._next_instance_key() if key is None else key,
            ordering_token=[launcher._get_ordering_token()],
            communication_hint=options.implementation.value.lower(),
            timeout_seconds=options.timeout_seconds or 0,
        )
