"""Ends a process whose start-up TensorFlow does not end by itself.

While TensorFlow 2.21 sets up `MultiWorkerMirroredStrategy`, and until all processes
have computed their first sum, it waits without limit for one that has gone, in C++,
where no exception of Python's reaches it. And from then on it takes SIGTERM for itself
(xla/tsl/distributed_runtime/preemption/preemption_notifier.cc, `SigtermNotifier`), so
that the signal is lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from strategies.cluster.rendezvous import Needed
from strategies.cluster.spec import Cluster
from strategies.cluster.watchdog_process import POLL_SECONDS, OutsideWatch
from strategies.common.errors import PeerLostError
from strategies.common.signals import PASSED_ON, original, requests_to_stop

# So long may a process be out of reach until TensorFlow answers at its address; or so
# long before this one may another find that a request is wrong, and end.
_SECONDS_UNTIL_LOST = 8.0
# Where a thread can still say it, it does, and ends with the exit code itself.
_SECONDS_UNTIL_ENDED_FROM_OUTSIDE = _SECONDS_UNTIL_LOST + 3.0


class StartUpWatch:
    """Watches over the time in which nothing has been written that could be lost."""

    def __init__(self, cluster: Cluster):
        """Begins to watch from outside.

        Args:
          cluster: whose tasks have all been there once.
        """
        self._needed = [
            Needed(task, address, _SECONDS_UNTIL_LOST)
            for task, address in cluster.peers().items()
        ]
        self._outside = OutsideWatch(cluster.peers(), _SECONDS_UNTIL_ENDED_FROM_OUTSIDE)
        self._is_over = threading.Event()
        # A signal that is ignored would still reach a thread that waits for it.
        self._signals = {*requests_to_stop(), *PASSED_ON.values()}

    @contextlib.contextmanager
    def signals_kept(self) -> Iterator[None]:
        """Begins to watch. Afterwards signals have the handlers they had before.

        Inside, the main thread blocks them, and so do all threads that are made there:
        the kernel then gives them to the thread that waits for them.
        """
        before = {number: signal.getsignal(number) for number in self._signals}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

    def end(self) -> None:
        """TensorFlow tells of lost tasks by itself from here on."""
        self._is_over.set()
        self._outside.end()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            received = signal.sigtimedwait(self._signals, POLL_SECONDS)
            if received is not None:
                os._exit(128 + original(received.si_signo))
            try:
                for task in self._needed:
                    task.require()
            except PeerLostError as error:
                if not self._is_over.is_set():
                    # Not a buffered print: the main thread may hold its lock.
                    os.write(sys.stderr.fileno(), f"error: {error}\n".encode())
                    os._exit(PeerLostError.exit_code)
