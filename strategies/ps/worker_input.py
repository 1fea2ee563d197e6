"""Input of the workers of parameter servers."""

from collections.abc import Iterator
from typing import Any

from strategies.common.types import GlobalBatches, StreamedBatches


class WorkerInput:
    """Batches that each worker keeps as a whole. Any worker computes any step."""

    def __init__(self, iterators: Any, batches: GlobalBatches):
        """Begins with the first step; each worker has an iterator of `cached_data`."""
        self._iterators = iterators
        self.batches = batches
        self.next_step = batches.first_step

    @property
    def is_exhausted(self) -> bool:
        """True if the closures that run cannot read the next step."""
        return False

    def take(self, num_steps: int) -> Any:
        """Returns the source of the next steps for closures, as `opened` takes it."""
        self.next_step += num_steps
        return self._iterators


class WindowedInput(WorkerInput):
    """Batches of a stream, of which workers get one window of steps after the other.

    Only this process can read the stream of a Python program, and no window is kept.
    Satisfies `BoundedInput`.
    """

    def __init__(self, batches: StreamedBatches):
        """Reads nothing yet."""
        super().__init__(None, batches)
        self._windows: Iterator[tuple[int, Any]] = batches.windows()
        self._window: Any = None
        # Window that is read and not taken, with its number of steps.
        self._upcoming: tuple[int, Any] | None = None
        self._end = self.next_step

    def steps_left(self) -> int:
        """Returns the number of steps up to the end of the present or next window."""
        if not self.is_exhausted:
            return self._end - self.next_step
        self._upcoming = self._upcoming or next(self._windows)
        return self._upcoming[0]

    @property
    def is_exhausted(self) -> bool:
        """True if the present window does not have the next step."""
        return self.next_step == self._end

    def take(self, num_steps: int) -> Any:
        """Returns the window of the next steps, at most `steps_left`."""
        if self.is_exhausted:
            window_steps, self._window = self._upcoming or next(self._windows)
            self._upcoming = None
            self._end += window_steps
        self.next_step += num_steps
        return self._window


def opened(cached_data: Any) -> Any:
    """Returns the tensors that batches are read from, from the result of `take`."""
    # A window is a tuple of tensors.
    return cached_data if isinstance(cached_data, tuple) else next(cached_data)
