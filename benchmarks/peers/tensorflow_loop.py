"""A training loop of tf.distribute, written by hand, with many steps a call.

As an expert writes it, and as Orbit of the TensorFlow Model Garden does. Alone, on
several logical CPU devices, or, with TF_CONFIG, as one of several workers.
"""

import os
from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers.keras_models import build, dataset, split_cpu, use_threads
from benchmarks.peers.work import WORKS, Stopwatch, arguments


def main() -> None:
    """Trains, and prints the speed."""
    flags = arguments()
    work = WORKS[flags.work]
    use_threads(flags.threads)
    strategy = _strategy(flags.num_replicas)
    with strategy.scope():
        model = build(flags.work, work)
        optimizer = keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )

    def replica_step(batch: Any) -> tf.Tensor:
        features, labels = batch
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(features, training=True))
            loss = tf.reduce_sum(losses) / flags.global_batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        # Sums over replicas by itself.
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    if flags.jit_compile:
        replica_step = tf.function(replica_step, jit_compile=True)

    @tf.function
    def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([])
        for _ in tf.range(num_steps):
            losses = strategy.run(replica_step, args=(next(iterator),))
            loss = strategy.reduce("SUM", losses, axis=None)
        return loss

    batches = strategy.experimental_distribute_dataset(
        dataset(work, flags.global_batch_size)
    )
    iterator = iter(batches)
    watch = Stopwatch(flags.global_batch_size)
    for _ in range(flags.steps // flags.steps_per_call):
        watch.begin()
        float(call(iterator, tf.constant(flags.steps_per_call)))
        watch.end(flags.steps_per_call)
    watch.report(tensorflow=tf.__version__, keras=keras.__version__)


def _strategy(num_replicas: int) -> tf.distribute.Strategy:
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if num_replicas > 1:
        return tf.distribute.MirroredStrategy(split_cpu(num_replicas))
    return tf.distribute.get_strategy()


if __name__ == "__main__":
    main()
