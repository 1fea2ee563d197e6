"""A cluster in the forms that TensorFlow takes it."""

from __future__ import annotations

import tensorflow as tf

from strategies.cluster.spec import EVALUATOR, Cluster


def cluster_spec(cluster: Cluster) -> tf.train.ClusterSpec:
    """Addresses by job, without the evaluator, which TensorFlow would wait for."""
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
    """Addresses, and which task this process is."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster_spec(cluster),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer="grpc",
    )


def task_of(value: tf.Tensor) -> str:
    """The task that holds an eager tensor, such as `worker-1`."""
    device = tf.DeviceSpec.from_string(value.backing_device)
    return f"{device.job}-{device.task}"
