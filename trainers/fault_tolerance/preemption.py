"""Graceful stop on SIGINT and SIGTERM, with a checkpoint."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from strategies.common.errors import ExitCode, StopRequested
from strategies.common.forks import call_at_forks
from strategies.common.signals import PASSED_ON, original, requests_to_stop
from trainers.loop.loop import StepEvent

_EXIT_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
}


class PreemptionSignals:
    """Signal handlers that stop a run after the current step. A callback.

    A process enters this context once for each training. A request that comes too late
    to stop one training stops the next one after its first call of the inner loop.

    A SIGINT that the process was started to ignore stays ignored. A second signal has
    the handler that it had before, which ends the process at once, unless it is the
    launcher's copy of the first. Forked processes have the earlier handlers as well:
    `multiprocessing.Pool` ends its workers by SIGTERM.
    """

    def __init__(self, stops_together: bool = False) -> None:
        """Takes over no signal yet.

        Args:
          stops_together: True if other processes have to stop at the same step. They
            learn of a signal with the next call of the inner loop.
        """
        self._stops_together = stops_together
        self._received: int | None = None
        self._previous: dict[int, Any] = {}
        self._num_trainings = 0
        self._is_first_call = True
        call_at_forks(
            before=self._block,
            after_in_parent=self._unblock,
            after_in_child=self._give_back_in_child,
        )

    def __enter__(self) -> PreemptionSignals:
        self._num_trainings += 1
        self._is_first_call = True
        if not self.requested:
            for number in requests_to_stop():
                self._previous[number] = signal.signal(number, self._receive)
        for passed_on in PASSED_ON.values():
            signal.signal(passed_on, self._receive_passed_on)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        self._previous = {}
        # The handlers of the signals that a launcher forwards stay installed without
        # effect: the run is about to end, with or without a checkpoint.

    def give_back_passed_on(self) -> None:
        """Lets signals that a launcher forwards end the process, as all others do.

        If a request has come already, they only repeat it.
        """
        if self.requested:
            return
        for passed_on in PASSED_ON.values():
            signal.signal(passed_on, signal.SIG_DFL)

    @property
    def requested(self) -> bool:
        """True if this process has received a signal."""
        return self._received is not None

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the received signal, or SIGTERM's if another process got it."""
        return _EXIT_CODES[signal.Signals(self._received or signal.SIGTERM)]

    def __call__(self, event: StepEvent) -> None:
        """Raises `StopRequested` if this run was asked to stop.

        Processes that stop together do so after the same step. A run that has reached
        its last step ends normally, but not a later training whose first call is also
        its last: a program that trains so again and again would never stop.
        """
        agreed = event.results.agreed.stop_requested
        asked = agreed if self._stops_together else self.requested
        is_late = self._num_trainings > 1 and self._is_first_call
        self._is_first_call = False
        if asked and (is_late or not event.is_last):
            raise StopRequested(self.exit_code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = number
        self._restore()

    def _receive_passed_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Does not restore the old handlers: a scheduler may signal both the task and
        # the launcher, and the forwarded copy must not count as a second signal.
        self._received = self._received or original(number)

    def _block(self) -> None:
        # A new process forgets what its handlers receive before the fork is complete
        # (Modules/signalmodule.c of CPython, `_PySignal_AfterFork`).
        signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._previous)

    def _give_back_in_child(self) -> None:
        self._restore()
        self._unblock()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
