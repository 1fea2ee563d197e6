"""Wall time of a run by kind of work."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

import psutil

_KINDS = ("startup", "trace", "train", "input", "eval", "checkpoint", "summary")


@dataclasses.dataclass(slots=True)
class Timer:
    """Duration of one measured block; 0 until the block ends."""

    seconds: float = 0.0


class Clock:
    """Seconds by kind of work, as result.json reports them.

    `input` is the part of `train` in which steps waited for examples; the other kinds
    do not overlap.
    """

    def __init__(self, listener: Callable[[str], None] = lambda kind: None):
        """Starts all counters at zero.

        Args:
          listener: Function called with the kind of a block when it begins and when it
            ends.
        """
        self._listener = listener
        self._seconds = dict.fromkeys(_KINDS, 0.0)
        process = psutil.Process()
        # psutil gives the start on the wall clock; perf_counter is monotonic.
        self._start_of_process = time.perf_counter() - (
            time.time() - process.create_time()
        )

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[Timer]:
        """Adds the duration of a block to one kind.

        Args:
          kind: Kind of work.

        Yields:
          Timer with the duration, set once the block ends.
        """
        timer = Timer()
        # The watchdog counts both the start and the end of a block as progress.
        self._listener(kind)
        start = time.perf_counter()
        try:
            yield timer
        finally:
            timer.seconds = time.perf_counter() - start
            self._listener(kind)
            self._seconds[kind] += timer.seconds

    def add(self, kind: str, seconds: float) -> None:
        self._seconds[kind] += seconds

    def started(self) -> None:
        """Ends the start-up phase, which began with the process, before imports."""
        self._seconds["startup"] = time.perf_counter() - self._start_of_process

    def seconds(self) -> dict[str, float]:
        return {kind: round(value, 6) for kind, value in self._seconds.items()}
