"""Wall time of a run by kind of work."""

import collections
import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator

# Number of newest blocks whose start is kept.
_MOST_BLOCKS = 4_000
_KINDS = ("startup", "trace", "train", "input", "eval", "checkpoint", "summary")


@dataclasses.dataclass(slots=True)
class Timer:
    """Duration of one measured block; 0 until the block ends."""

    seconds: float = 0.0


class Clock:
    """Seconds by kind of work, as result.json reports them.

    `input` is the part of `train` in which steps waited for examples; the other kinds
    do not overlap.

    Attributes:
      blocks: Newest blocks: kind, start in seconds since the epoch, and seconds.
    """

    def __init__(self, listener: Callable[[str | None], None] = lambda kind: None):
        """Starts all counters at zero.

        The listener is called with the kind of a block when it begins, and with None
        when it ends.
        """
        self._listener = listener
        self._seconds = dict.fromkeys(_KINDS, 0.0)
        self.blocks: collections.deque[tuple[str, float, float]] = collections.deque(
            maxlen=_MOST_BLOCKS
        )
        self._start_of_process = time.perf_counter() - seconds_since_start()

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[Timer]:
        """Adds the duration of a block to one kind.

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
            self._listener(None)
            self._seconds[kind] += timer.seconds
            self.blocks.append((kind, time.time() - timer.seconds, timer.seconds))

    def add(self, kind: str, seconds: float) -> None:
        self._seconds[kind] += seconds

    def started(self) -> None:
        """Ends the start-up phase, which began with the process, before imports.

        A process that trains several times has started up once.
        """
        if not self._seconds["startup"]:
            self._seconds["startup"] = time.perf_counter() - self._start_of_process

    def seconds(self) -> dict[str, float]:
        return {kind: round(value, 6) for kind, value in self._seconds.items()}


def seconds_since_start() -> float:
    """Returns the seconds since this process was started."""
    # Linux counts the start from the last boot. psutil adds the time of that by the
    # wall clock, which the kernel gives in whole seconds and corrects when the clock is
    # set: a first step was measured to end 0.2 s after the process.
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # Field 22 of proc(5), counted from the third one.
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
