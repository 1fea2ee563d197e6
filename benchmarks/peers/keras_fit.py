"""`keras.Model.fit`, alone or under MirroredStrategy."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers.keras_models import build, dataset, split_cpu, use_threads
from benchmarks.peers.work import WORKS, Stopwatch, arguments


class Timed(keras.callbacks.Callback):
    """Times every call; batches between calls are counted as they come."""

    def __init__(self, watch: Stopwatch):
        super().__init__()
        self._watch = watch
        self._seen = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._watch.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._watch.end(batch + 1 - self._seen)
        self._seen = batch + 1


def main() -> None:
    """Trains, and prints how fast."""
    told = arguments()
    work = WORKS[told.work]
    use_threads(told.threads)
    scope: Any = contextlib.nullcontext()
    if told.num_replicas > 1:
        scope = tf.distribute.MirroredStrategy(split_cpu(told.num_replicas)).scope()
    watch = Stopwatch(told.global_batch_size)
    with scope:
        model = build(told.work, work)
        model.compile(
            optimizer=keras.optimizers.Adam(0.001),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # More than one crashes under MirroredStrategy (Keras 3.15).
            steps_per_execution=told.steps_per_call,
        )
    model.fit(
        dataset(work, told.global_batch_size),
        steps_per_epoch=told.steps,
        verbose=0,
        callbacks=[Timed(watch)],
    )
    watch.report(tensorflow=tf.__version__, keras=keras.__version__)


if __name__ == "__main__":
    main()
