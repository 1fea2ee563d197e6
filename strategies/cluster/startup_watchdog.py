"""Watch over a start-up that TensorFlow does not end by itself.

While TensorFlow 2.21 sets up `MultiWorkerMirroredStrategy`, it waits without limit for
a dead process, and again in the first sum. It waits in C++, where no Python exception
reaches it. From the set-up on it also takes SIGTERM for itself
(xla/tsl/distributed_runtime/preemption/preemption_notifier.cc, `SigtermNotifier`), so
that the signal is lost.
"""

import os
import pathlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from strategies.cluster.probes import PeerProbe
from strategies.cluster.spec import Cluster
from strategies.cluster.watchdog_process import POLL_SECONDS, WatchdogProcess
from strategies.common.errors import PeerLostError
from strategies.common.signals import requests_to_stop

T = TypeVar("T")

# Wakes the main thread. The system ignores this signal where nobody waits for it.
_HAS_RETURNED = signal.SIGURG
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
        self._signals = requests_to_stop()

    def call(self, function: Callable[[], T]) -> T:
        """Returns the result of a function, which runs in another thread.

        A request to stop ends this process meanwhile. The signal handlers are restored
        afterwards, because TensorFlow replaces that of SIGTERM.
        """
        before = {number: signal.getsignal(number) for number in self._signals}
        waited_for = {*self._signals, _HAS_RETURNED}
        # Linux gives a signal to the main thread of a process if that waits for it
        # (kernel/signal.c, `complete_signal`), and no handler is called. While the main
        # thread only blocks it, a thread of NumPy that does not would get it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
        try:
            threading.Thread(target=self._watch, daemon=True).start()
            with ThreadPoolExecutor(max_workers=1) as pool:
                result = pool.submit(_once_signals_are_awaited, function)
                main = threading.get_ident()
                result.add_done_callback(
                    lambda _: signal.pthread_kill(main, _HAS_RETURNED)
                )
                while not result.done():
                    received = signal.sigwait(waited_for)
                    if received in self._signals:
                        # Not sys.exit: the other thread may be in C++ and never return.
                        os._exit(128 + received)
            return result.result()
        finally:
            # Handlers first: a signal that is pending arrives at once when unblocked.
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def end(self) -> None:
        """Stops the watch: TensorFlow itself reports dead tasks from here on."""
        self._is_over.set()
        self._outside.end()

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            try:
                for task in self._needed:
                    task.require()
            except PeerLostError as error:
                if not self._is_over.is_set():
                    # Not a buffered print: the main thread may hold its lock.
                    os.write(sys.stderr.fileno(), f"error: {error}\n".encode())
                    os._exit(PeerLostError.exit_code)


def _once_signals_are_awaited(function: Callable[[], T]) -> T:
    """Calls a function as soon as the main thread waits for signals.

    The function may hold Python's lock, and the main thread needs that to begin.
    """
    status = pathlib.Path("/proc/self/status")
    # Linux takes a signal out of the mask of a thread while the thread waits for it.
    while _blocks_sigterm(status.read_text()):
        time.sleep(0.001)
    return function()


def _blocks_sigterm(status: str) -> bool:
    mask = re.search(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
    # Signal N is bit N - 1 of the mask.
    bit = 1 << (signal.SIGTERM - 1)
    return mask is not None and int(mask[1], 16) & bit != 0
