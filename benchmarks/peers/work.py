"""The models and data shapes that peers train on, equal to the project's."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time

import numpy as np

from trainers.loop.timing import seconds_since_start

NUM_EXAMPLES = 4096


@dataclasses.dataclass(frozen=True)
class Work:
    """The shapes of a model's input and output, and the widths of its layers.

    Attributes:
      vocabulary: Number of words; features are ids of words. None for numbers.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    hidden_units: tuple[int, ...] = ()
    vocabulary: int | None = None


WORKS = {
    "mlp": Work((5,), 2, hidden_units=(10,)),
    "convnet": Work((32, 32, 3), 10),
    # Handwritten digits, as in many tutorials.
    "digits": Work((784,), 10, hidden_units=(512, 512)),
    # 21 million weights, whose gradients take 84 MB.
    "dense": Work((3072,), 10, hidden_units=(4096, 2048)),
    # examples/text_classifier.py
    "transformer": Work((16,), 2, vocabulary=40),
}


def arguments() -> argparse.Namespace:
    """Parses the flags that all peers have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--global_batch_size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--steps_per_call", type=int, default=1)
    parser.add_argument("--num_replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--jit_compile", action="store_true")
    return parser.parse_args()


def examples(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Returns features [n, *input_shape] and labels [n]."""
    generator = np.random.default_rng(0)
    shape = (NUM_EXAMPLES, *work.input_shape)
    features: np.ndarray
    if work.vocabulary:
        features = generator.integers(work.vocabulary, size=shape)
    else:
        features = generator.standard_normal(shape, dtype=np.float32)
    return features, generator.integers(work.num_classes, size=NUM_EXAMPLES)


class Stopwatch:
    """Measures the duration of calls, and reports the speed."""

    def __init__(self, global_batch_size: int):
        self._global_batch_size = global_batch_size
        self._examples_per_second: list[float] = []
        self._first_step_seconds: float | None = None
        self._last = time.perf_counter()

    def begin(self) -> None:
        self._last = time.perf_counter()

    def end(self, num_steps: int) -> None:
        """Ends a call of some steps, which `begin` began."""
        seconds = time.perf_counter() - self._last
        if self._first_step_seconds is None:
            self._first_step_seconds = seconds_since_start()
        rate = num_steps * self._global_batch_size / seconds
        self._examples_per_second.append(rate)

    def report(self, **versions: str) -> None:
        """Prints a line of JSON: the median over calls, as the project takes it."""
        # The first two trace and warm up, as in trainers/reporting/result.py.
        warm = self._examples_per_second[2:] or self._examples_per_second[-1:]
        measured = {
            "examples_per_second": float(np.median(warm)),
            "first_step_seconds": self._first_step_seconds,
            "peak_memory_mib": _peak_memory_mib(),
            "versions": versions,
        }
        print(json.dumps(measured), flush=True)


def _peak_memory_mib() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status.read())
    return int(kibibytes) / 1024
