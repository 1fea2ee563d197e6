"""Looks after a process from outside, while nothing inside it may be able to.

The leader of `MultiWorkerMirroredStrategy` that waits in C++ for a follower which died
as they connected does so with Python's lock (TensorFlow 2.21): no thread and no signal
handler of it runs again. `python -m strategies.cluster.watchdog_process` is started by such a
process for that time, and imports next to nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Mapping

from strategies.cluster.rendezvous import Needed
from strategies.common.errors import PeerLostError

POLL_SECONDS = 0.5
# A shell and Kubernetes call a death by signal N exit code 128 + N.
_ENDS_WITH_138 = PeerLostError.exit_code - 128


class OutsideWatch:
    """A process that ends this one when a task has been lost for too long."""

    def __init__(self, peers: Mapping[str, str], patience_seconds: float):
        """Begins to watch.

        Args:
          peers: host:port of the tasks to look for, by name.
          patience_seconds: how long one of them may be out of reach.
        """
        request = {"peers": dict(peers), "patience_seconds": patience_seconds}
        root = str(pathlib.Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(request)],
            env={**os.environ, "PYTHONPATH": root},
            # It ends when this end is closed, as it is when this process dies.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def end(self) -> None:
        """Nobody watches from here on."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait()


def main() -> None:
    """Ends the process that started this one, with a line, or this one with it."""
    request = json.loads(sys.argv[1])
    watched = os.getppid()
    needed = [
        Needed(task, address, request["patience_seconds"])
        for task, address in request["peers"].items()
    ]
    # Requests to stop go to all of a terminal's processes; this one goes with its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        try:
            for task in needed:
                task.require()
        except PeerLostError as error:
            os.write(sys.stderr.fileno(), f"error: {error}\n".encode())
            os.kill(watched, _ENDS_WITH_138)
            return


if __name__ == "__main__":
    main()
