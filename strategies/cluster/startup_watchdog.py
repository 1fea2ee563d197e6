"""Watch over a start-up that TensorFlow does not end by itself.

While TensorFlow 2.21 sets up `MultiWorkerMirroredStrategy`, it waits without limit for
a dead process, and in the first sum for the ten minutes of all collectives. It waits in
C++, where no Python exception reaches it. From the set-up on it also takes SIGTERM
for itself (xla/tsl/distributed_runtime/preemption/preemption_notifier.cc,
`SigtermNotifier`), so that the signal is lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from strategies.cluster.probes import PeerProbe
from strategies.cluster.spec import Cluster
from strategies.cluster.watchdog_process import POLL_SECONDS, WatchdogProcess
from strategies.common.errors import PeerLostError
from strategies.common.signals import PASSED_ON, original, requests_to_stop

# A process may be unreachable for this long until TensorFlow answers at its address.
# Another process may also find a usage error, and exit, this long before this process
# finds the same error and reports it.
_SECONDS_UNTIL_LOST = 8.0
# The thread of this process acts first if it can: it reports and sets the exit code.
_SECONDS_UNTIL_ENDED_FROM_OUTSIDE = _SECONDS_UNTIL_LOST + 3.0


class StartUpWatchdog:
    """Watchdog of the start-up, during which a sudden end loses no result."""

    def __init__(self, cluster: Cluster):
        """Starts the watchdog process, once all tasks have been reachable."""
        self._needed = [
            PeerProbe(task, address, _SECONDS_UNTIL_LOST)
            for task, address in cluster.peers().items()
        ]
        self._outside = WatchdogProcess(
            cluster.peers(), _SECONDS_UNTIL_ENDED_FROM_OUTSIDE
        )
        self._is_over = threading.Event()
        # A signal that is ignored would still reach a thread that waits for it.
        self._signals = {*requests_to_stop(), *PASSED_ON.values()}

    @contextlib.contextmanager
    def signals_kept(self) -> Iterator[None]:
        """Watches inside the block, and restores the signal handlers afterwards."""
        # TensorFlow replaces the handler of SIGTERM inside the block.
        before = {number: signal.getsignal(number) for number in self._signals}
        # The main thread blocks the signals, and so do all threads that it starts from
        # here on. They stay pending then, for the thread that watches to see.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        finally:
            # Handlers first: a signal that is pending arrives at once when unblocked.
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

    def end(self) -> None:
        """Stops the watch: TensorFlow itself reports dead tasks from here on."""
        self._is_over.set()
        self._outside.end()

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            # Not signal.sigtimedwait: if it is interrupted after its time, as by the
            # continuation of a suspended process, CPython 3.11 returns memory that
            # nobody has written (Modules/signalmodule.c). Processes ended with 176 and
            # 224.
            received = self._signals & signal.sigpending()
            if received:
                # Not sys.exit: the main thread may be in C++ and never return.
                os._exit(128 + original(min(received)))
            try:
                for task in self._needed:
                    task.require()
            except PeerLostError as error:
                if not self._is_over.is_set():
                    # Not a buffered print: the main thread may hold its lock.
                    os.write(sys.stderr.fileno(), f"error: {error}\n".encode())
                    os._exit(PeerLostError.exit_code)
