"""Ending a run on a signal, between two steps and with a checkpoint."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from strategies.common.errors import ExitCode, StopRequested
from strategies.common.signals import PASSED_ON, original, requests_to_stop
from trainers.loop.loop import StepReport

_EXIT_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
}


class StopSignals:
    """Remembers SIGINT and SIGTERM until the step at hand is done. A hook.

    A SIGINT that the process was started to ignore stays ignored.
    A second signal is handled as it was before, which ends the process at once; unless
    it only repeats what a launcher has received as well.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in requests_to_stop():
            self._previous[number] = signal.signal(number, self._receive)
        for passed_on in PASSED_ON.values():
            signal.signal(passed_on, self._receive_passed_on)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
        # The handlers of what a launcher passes on stay, and do nothing any more: the
        # run is about to end, with a checkpoint or without.

    @property
    def requested(self) -> bool:
        """Whether this process has received a signal."""
        return self._received is not None

    @property
    def exit_code(self) -> ExitCode:
        """Of the signal; if another process has received it, that of SIGTERM."""
        return _EXIT_CODES[signal.Signals(self._received or signal.SIGTERM)]

    def __call__(self, report: StepReport) -> None:
        """Raises StopRequested if any process got a signal before this step.

        Every process learns of it with the same step. A finished run just ends.
        """
        if report.results.agreed.stop_requested and not report.is_last:
            raise StopRequested(self.exit_code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = number
        self._restore()

    def _receive_passed_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = self._received or original(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
