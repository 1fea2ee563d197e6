"""One launched process: its output, its signals and its end.

This module does not import TensorFlow.
"""

import collections
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import psutil

from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import STOPS, name_of
from strategies.launcher.launch_config import Plan, cores_of, resources_of
from strategies.processes.network_isolation import Network
from strategies.processes.parent import LAUNCHER_PID
from strategies.processes.starter import Program

# By default glibc returns large freed buffers to the system, and every step faults them
# in again. With these settings the 84 MB step of two workers went from 340 to 245 ms.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
_LAST_LINES = 20
# A launcher that has not looked for longer may have been suspended with its tasks.
_SECONDS_BETWEEN_LOOKS = 1.0


class LaunchedTask:
    """Process of one task, with the last lines of its output."""

    def __init__(self, cluster: Cluster, plan: Plan, network: Network):
        """Starts the process."""
        self.cluster = cluster
        # True for a task that the launcher has restarted alone.
        self.is_replacement = False
        # The chief's output is always printed.
        self._is_shown = plan.forward_output and not cluster.is_chief
        self._is_asked_to_stop = False
        self._log = plan.logs / f"{cluster.task}.log"
        self._has_begun = plan.has_begun
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        # Later entries win: the user may change the allocator, but not the cluster.
        environment = {
            **_ALLOCATOR,
            **plan.variables,
            **os.environ,
            **resources_of(plan, cluster),
            "TF_CONFIG": cluster.tf_config(),
            LAUNCHER_PID: str(os.getpid()),
        }
        self.process = plan.starter.start(
            Program(
                command=[*plan.command, *plan.last_arguments],
                environment=environment,
                # The chief inherits the launcher's standard output.
                stdout=None if cluster.is_chief else subprocess.PIPE,
                stderr=subprocess.PIPE if cluster.is_chief else subprocess.STDOUT,
                network=network,
                cores=cores_of(plan, cluster),
            )
        )
        self._looked_at = time.monotonic()
        self._stopped_since: float | None = None
        self._output = self.process.stderr if cluster.is_chief else self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def was_signaled(self) -> bool:
        """True if a signal ended the process.

        Either nobody asked the process to end, or it could not yet end in order.
        """
        # `Popen` returns -N for the death by signal N.
        return (self.process.poll() or 0) < 0

    @property
    def exited(self) -> bool:
        """True if the process exited by itself, even with an error."""
        code = self.process.poll()
        return code is not None and code >= 0

    @property
    def was_killed(self) -> bool:
        """True if a signal other than a request to stop ended the process."""
        return self.was_signaled and -self.process.returncode not in STOPS

    @property
    def is_peer_failure(self) -> bool:
        """True if the process was killed, or exited because another task was dead."""
        return self.was_killed or self.process.poll() == PeerLostError.exit_code

    @property
    def signal_name(self) -> str:
        """Signal that ended the process, in brackets after a space, or empty."""
        code = self.process.poll() or 0
        return f" ({name_of(-code)})" if code < 0 else ""

    @property
    def is_stopped(self) -> bool:
        """True if the process is suspended at this moment, as by SIGSTOP."""
        try:
            status = psutil.Process(self.process.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status == psutil.STATUS_STOPPED

    def seconds_stopped(self) -> float:
        """Returns the seconds of the present suspension, as observed by these calls."""
        is_stopped = self.is_stopped
        now = time.monotonic()
        # After a long pause between two calls the time counts from zero again.
        if not is_stopped or now - self._looked_at > _SECONDS_BETWEEN_LOOKS:
            self._stopped_since = None
        self._looked_at = now
        if not is_stopped:
            return 0.0
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since

    def last_lines(self) -> Sequence[str]:
        # With a limit: a child of the task may hold the pipe open.
        self._reader.join(timeout=1)
        return tuple(self._lines)

    def send(self, number: int) -> None:
        """Sends a signal, if the process has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def forward(self, number: int) -> None:
        """Sends a signal the first time only; a second would end the task at once."""
        if not self._is_asked_to_stop:
            self._is_asked_to_stop = True
            self.send(number)

    def close(self) -> None:
        self.process.wait()
        # With a limit: the log may be on a disk that does not respond.
        self._reader.join(timeout=1)
        if self._output is not None and not self._reader.is_alive():
            self._output.close()

    def _read(self) -> None:
        """Keeps the last lines, and logs all lines once the run has begun."""
        # Lines that are not in the log yet.
        waiting: list[str] = []
        for line in self._output or ():
            self._lines.append(line.rstrip("\n"))
            waiting.append(line)
            # A task blocks if nobody reads its output, so that reading continues even
            # if the line cannot be shown.
            with contextlib.suppress(OSError):
                self._show(line)
            self._move_to_log(waiting)
        if waiting:
            self._move_to_log(waiting)

    def _show(self, line: str) -> None:
        if self.cluster.is_chief:
            sys.stderr.write(line)
        elif self._is_shown:
            # Several threads write here, each a whole line.
            sys.stdout.write(line)
            sys.stdout.flush()

    def _move_to_log(self, lines: list[str]) -> None:
        """Moves lines to the log, if there is one, or drops what cannot be written."""
        with contextlib.suppress(OSError):
            # The chief of a refused run makes the folder, too, to shut down servers.
            if not (self._log.parent.is_dir() and self._has_begun()):
                return
            with self._log.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        lines.clear()
