"""The models and data shapes that peers train on, equal to the project's."""

import argparse
import dataclasses
import json
import re
import statistics
import time

import numpy as np

from trainers.loop.timing import seconds_since_start

NUM_EXAMPLES = 4096
# As trainers/reporting/metrics.py measures, whose import would delay a peer's start.
_WARM_UP_CALLS = 2
_WINDOW_SECONDS = 0.5


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
        self._num_calls = 0
        self._first_step_seconds: float | None = None
        self._last = time.perf_counter()
        # Examples a second of each window, and steps and seconds since the last one.
        self._windows: list[float] = []
        self._steps, self._seconds = 0, 0.0

    def begin(self) -> None:
        self._last = time.perf_counter()

    def end(self, num_steps: int) -> None:
        """Ends a call of some steps, which `begin` began."""
        seconds = time.perf_counter() - self._last
        if self._first_step_seconds is None:
            self._first_step_seconds = seconds_since_start()
        # The first two calls trace and warm up. Without a fourth, the third counts.
        self._num_calls += 1
        if self._num_calls <= _WARM_UP_CALLS + 1:
            self._steps, self._seconds = 0, 0.0
        self._steps += num_steps
        self._seconds += seconds
        if self._seconds >= _WINDOW_SECONDS and self._num_calls > _WARM_UP_CALLS:
            self._windows.append(self._rate())
            self._steps, self._seconds = 0, 0.0

    def _rate(self) -> float:
        return self._steps * self._global_batch_size / self._seconds

    def report(self, **versions: str) -> None:
        """Prints a line of JSON: the median over windows, as the project takes it."""
        windows = self._windows or [self._rate()]
        measured = {
            "examples_per_second": statistics.median_low(windows),
            "first_step_seconds": self._first_step_seconds,
            "peak_memory_mib": _peak_memory_mib(),
            "versions": versions,
        }
        print(json.dumps(measured), flush=True)


def _peak_memory_mib() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status.read())
    return int(kibibytes) / 1024
