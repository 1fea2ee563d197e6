"""Watchdog process: ends its parent if start-up hangs in C++.

The leader of `MultiWorkerMirroredStrategy` waits in C++ for a follower that died while
they connected. The leader holds Python's lock meanwhile (TensorFlow 2.21), so that none
of its threads and signal handlers runs again. Such a process therefore starts
`python -m strategies.cluster.watchdog_process` for that time. The watchdog imports next
to nothing.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from strategies.cluster.probes import PeerProbe
from strategies.common.errors import PeerLostError

POLL_SECONDS = 0.5
# A shell and Kubernetes report a death by signal N as exit code 128 + N.
_ENDS_WITH_138 = PeerLostError.exit_code - 128


class WatchdogProcess:
    """Watchdog that ends this process once a task has been unreachable for too long."""

    def __init__(self, peers: Mapping[str, str], patience_seconds: float):
        """Starts the watchdog process."""
        request = {
            "watched": os.getpid(),
            "peers": dict(peers),
            "patience_seconds": patience_seconds,
        }
        # The folder of the top-level package: the clone, or site-packages.
        root = str(pathlib.Path(__file__).parents[__name__.count(".")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(request)],
            env={**os.environ, "PYTHONPATH": root},
            # No pipe: processes that a program forks would hold it open.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def end(self) -> None:
        """Stops the watchdog process."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Ends the parent process, with a message, once a task is unreachable for too long.

    Returns when the parent has ended.
    """
    request = json.loads(sys.argv[1])
    needed = [
        PeerProbe(task, address, request["patience_seconds"], must_serve=True)
        for task, address in request["peers"].items()
    ]
    # A terminal sends SIGINT to all its processes. This process has to outlive the
    # request: it ends with its parent.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The system gives a process without its parent another one.
    while os.getppid() == request["watched"]:
        time.sleep(POLL_SECONDS)
        try:
            for task in needed:
                task.require()
        except PeerLostError as error:
            os.write(sys.stderr.fileno(), f"error: {error}\n".encode())
            os.kill(request["watched"], _ENDS_WITH_138)
            return


if __name__ == "__main__":
    main()
