"""Models and data with a planted cause, and the commands that train them.

A task reads its index from TF_CONFIG, so that a cause is on one task alone.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_MODULE = "tests.trainers.experiments.explain.planted"
# Long beside a step of a millisecond, also on a busy machine.
_SLOW_SECONDS = 0.05
_SLOW_TASK = 1


def _is_slow_task() -> bool:
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return task.get("index") == _SLOW_TASK


def _examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(512, 16)).astype(np.float32)
    return features, (features.sum(axis=1) > 0).astype(np.int64)


def plain_data() -> Any:
    return _examples()


def _read_by(python: Callable[[np.ndarray], Any]) -> Any:
    """Examples that pass through a function of Python, as files of some kinds do."""
    features, labels = _examples()

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.numpy_function(python, [tf.gather(features, indices)], tf.float32)
        rows = tf.ensure_shape(rows, [None, features.shape[1]])
        return rows, tf.gather(labels, indices)

    return len(features), read


def slow_data() -> Any:
    """Examples that one task reads slowly."""

    def slow(rows: np.ndarray) -> np.ndarray:
        if _is_slow_task():
            time.sleep(_SLOW_SECONDS)
        return rows

    return _read_by(slow)


def retracing_data() -> Any:
    """Examples that pass through a function that is traced for every batch."""

    @tf.function
    def shifted(values: tf.Tensor, shift: int) -> tf.Tensor:
        return values + tf.cast(shift, tf.float32) * 0

    def shift(rows: np.ndarray) -> np.ndarray:
        return shifted(tf.constant(rows), time.monotonic_ns() % 10**9).numpy()

    return _read_by(shift)


class _Sleep(keras.layers.Layer):
    """Layer that sleeps on one task."""

    def call(self, inputs: Any) -> Any:
        def sleep(rows: np.ndarray) -> np.ndarray:
            time.sleep(_SLOW_SECONDS)
            return np.float32(0)

        if not _is_slow_task() or not tf.inside_function():
            return inputs
        zero = tf.numpy_function(sleep, [inputs], tf.float32)
        return inputs + tf.ensure_shape(zero, [])

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _classifier(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input([16]), *layers, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    return model


def plain_model() -> keras.Model:
    return _classifier(keras.layers.Dense(16))


def slow_model() -> keras.Model:
    return _classifier(keras.layers.Dense(16), _Sleep())


def tiny_layers_model() -> keras.Model:
    return _classifier(*(keras.layers.Dense(4) for _ in range(80)))


@contextlib.contextmanager
def _busy_programs() -> Iterator[None]:
    """Other programs that want all cores several times."""
    words = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(words) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@dataclasses.dataclass(frozen=True)
class Plant:
    """A planted cause.

    Attributes:
      cause: Name of the cause in the report.
      flags: Flags of the run.
      named: Further words in the report's line.
      before: Words in front of the command.
      beside: Context in which the command runs.
    """

    cause: str
    flags: Sequence[str]
    named: str = ""
    before: Sequence[str] = ()
    beside: Callable[[], contextlib.AbstractContextManager[None]] = (
        contextlib.nullcontext
    )


_TWO_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")
_OWN_DATA = f"--dataset={_MODULE}:plain_data"
_QUIET = ("--eval_every_steps=none", "--set=report.histogram_every_steps=none")

# tests/cluster has a network namespace for each host; one for all is enough here.
_SLOW_LOOPBACK = (
    *("unshare", "-Urn", "sh", "-c"),
    "ip link set lo up && tc qdisc add dev lo root tbf rate 100mbit burst 256kb "
    'latency 50ms && exec "$@"',
    "sh",
)
_SLOW_DISK = (
    *("strace", "-f", "-qq", "--seccomp-bpf", "-o/dev/null", "-etrace=fsync"),
    "-einject=fsync:delay_exit=500000",
)

PLANTS = (
    Plant(
        "slow_worker",
        (
            *(*_TWO_WORKERS, f"--model={_MODULE}:slow_model", _OWN_DATA, *_QUIET),
            "--train_steps=60",
        ),
        named="worker-1",
    ),
    Plant(
        "slow_input",
        (
            *(*_TWO_WORKERS, f"--model={_MODULE}:plain_model"),
            *(f"--dataset={_MODULE}:slow_data", "--train_steps=60", *_QUIET),
        ),
        named="worker-1",
    ),
    Plant(
        "slow_wire",
        (
            *(*_TWO_WORKERS, "--model=mlp", "--hidden_units=1024,1024"),
            *("--train_steps=12", "--set=strategy.isolate_network=off", *_QUIET),
        ),
        before=_SLOW_LOOPBACK,
    ),
    Plant(
        "crowded_cores",
        ("--strategy=mirrored", "--model=convnet", "--train_steps=100", *_QUIET),
        beside=_busy_programs,
    ),
    Plant(
        "tiny_batch",
        (
            *("--strategy=mirrored", "--global_batch_size=2", "--train_steps=1000"),
            *_QUIET,
        ),
    ),
    Plant(
        "many_tiny_tensors",
        (
            *("--strategy=mirrored", f"--model={_MODULE}:tiny_layers_model"),
            *(_OWN_DATA, "--train_steps=200", *_QUIET),
        ),
    ),
    Plant(
        "frequent_summaries",
        (
            *("--strategy=mirrored", "--set=report.histogram_every_steps=1"),
            *("--train_steps=100", "--eval_every_steps=none"),
        ),
        named="histograms",
    ),
    Plant(
        "slow_disk",
        (
            *("--strategy=mirrored", "--checkpoint_every_steps=25"),
            *("--train_steps=100", *_QUIET),
        ),
        before=_SLOW_DISK,
    ),
    Plant(
        "retracing",
        (
            *("--strategy=mirrored", f"--model={_MODULE}:plain_model"),
            *(f"--dataset={_MODULE}:retracing_data", "--train_steps=100", *_QUIET),
        ),
    ),
    Plant(
        "uneven_stages",
        (
            *("--strategy=model_parallel", "--model=convnet"),
            *("--pipeline_stages=logits", "--train_steps=60", *_QUIET),
        ),
        named="stage 0",
    ),
)

# Healthy runs: all strategies with their own work.
_CONVNET = ("--model=convnet", "--global_batch_size=128", "--train_steps=150")
HEALTHY = tuple(
    (*strategy, *_CONVNET, *_QUIET)
    for strategy in (
        ("--strategy=one_device",),
        ("--strategy=one_device", "--jit_compile=on"),
        ("--strategy=tower",),
        ("--strategy=tower", "--update=async"),
        ("--strategy=mirrored",),
        ("--strategy=parameter_averaging",),
        ("--strategy=model_parallel",),
        _TWO_WORKERS,
        ("--strategy=parameter_server", "--num_workers=2", "--num_ps=1"),
        *(
            (
                "--strategy=parameter_server",
                "--update=sync",
                "--num_workers=2",
                "--num_ps=1",
            ),
        ),
    )
)
