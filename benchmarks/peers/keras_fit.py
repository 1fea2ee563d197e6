"""`keras.Model.fit`, alone or under MirroredStrategy."""

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
    """Trains, and prints the speed."""
    flags = arguments()
    work = WORKS[flags.work]
    use_threads(flags.threads)
    scope: Any = contextlib.nullcontext()
    if flags.num_replicas > 1:
        scope = tf.distribute.MirroredStrategy(split_cpu(flags.num_replicas)).scope()
    watch = Stopwatch(flags.global_batch_size)
    with scope:
        model = build(flags.work, work)
        model.compile(
            optimizer=keras.optimizers.Adam(0.001),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # More than one crashes under MirroredStrategy (Keras 3.15).
            steps_per_execution=flags.steps_per_call,
        )
    model.fit(
        dataset(work, flags.global_batch_size),
        steps_per_epoch=flags.steps,
        verbose=0,
        callbacks=[Timed(watch)],
    )
    watch.report(tensorflow=tf.__version__, keras=keras.__version__)


if __name__ == "__main__":
    main()
