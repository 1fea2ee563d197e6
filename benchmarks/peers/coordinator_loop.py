"""Asynchronous parameter servers by hand: a ClusterCoordinator, one step a closure.

As TensorFlow's tutorial writes it. Every task runs this with TF_CONFIG.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers.keras_models import build, dataset, use_threads
from benchmarks.peers.work import WORKS, Stopwatch, arguments

_CLOSURES_BETWEEN_TIMES = 50


def main() -> None:
    """Serves, or trains and prints the speed."""
    flags = arguments()
    use_threads(flags.threads)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    work = WORKS[flags.work]
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build(flags.work, work)
        optimizer = keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica_step(batch: Any) -> tf.Tensor:
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def worker_step(iterator: Any) -> tf.Tensor:
        return strategy.run(replica_step, args=(next(iterator),))

    # Of one update, which is what asynchronous workers apply.
    batch_size = flags.global_batch_size
    batches = coordinator.create_per_worker_dataset(lambda: dataset(work, batch_size))
    iterator = iter(batches)
    watch = Stopwatch(batch_size)
    for _ in range(flags.steps // _CLOSURES_BETWEEN_TIMES):
        watch.begin()
        for _ in range(_CLOSURES_BETWEEN_TIMES):
            coordinator.schedule(worker_step, args=(iterator,))
        coordinator.join()
        watch.end(_CLOSURES_BETWEEN_TIMES)
    watch.report(tensorflow=tf.__version__, keras=keras.__version__)


if __name__ == "__main__":
    main()
