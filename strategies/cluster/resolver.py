"""TensorFlow's representations of a cluster."""

import tensorflow as tf

from strategies.cluster.spec import EVALUATOR, Cluster


def cluster_spec(cluster: Cluster) -> tf.train.ClusterSpec:
    """Returns addresses by job, without the evaluator."""
    # TensorFlow would wait for the evaluator, which takes no part in training.
    return tf.train.ClusterSpec(
        {
            job: list(addresses)
            for job, addresses in cluster.addresses.items()
            if job != EVALUATOR
        }
    )


def resolver_of(
    cluster: Cluster,
) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """Returns a resolver with the addresses and the task of this process."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster_spec(cluster),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer="grpc",
    )


def task_of(value: tf.Tensor) -> str:
    """Returns the task that holds an eager tensor, such as `worker-1`."""
    # `device` may name where the operation ran; `backing_device` has the memory.
    device = tf.DeviceSpec.from_string(value.backing_device)
    return f"{device.job}-{device.task}"
