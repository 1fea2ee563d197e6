"""One process that a launcher has started: its output, its signals, its end.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import STOPS
from strategies.launcher.network_isolation import Network

LAUNCHER_PID = "KDS_LAUNCHER_PID"

# glibc gives freed buffers of this size back to the system and faults them in anew at
# every step; kept, the 84 MB step of two workers went from 340 to 245 ms.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
_LAST_LINES = 20
# A launcher that has not looked for as long may have been stopped with its tasks.
_SECONDS_BETWEEN_LOOKS = 1.0


class LaunchedTask:
    """One started process, and what it has printed."""

    def __init__(
        self,
        cluster: Cluster,
        command: Sequence[str],
        network: Network,
        resources: Mapping[str, str],
        log: pathlib.Path,
        is_shown: bool,
    ):
        """Starts the process.

        Args:
          cluster: whose task it is.
          command: what it runs.
          network: where it runs.
          resources: environment variables of its own.
          log: file for what it prints, used once its folder exists.
          is_shown: whether that goes to the terminal too, which a chief's always does.
        """
        self.cluster = cluster
        # Whether it was started in place of one that was lost.
        self.is_replacement = False
        self._is_shown = is_shown and not cluster.is_chief
        self._is_told = False
        self._log = log
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        environment = {
            **_ALLOCATOR,
            **os.environ,
            **resources,
            "TF_CONFIG": cluster.tf_config(),
            LAUNCHER_PID: str(os.getpid()),
        }
        self.process = subprocess.Popen(
            network.command(command),
            pass_fds=tuple(network.descriptors.values()),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if cluster.is_chief else subprocess.PIPE,
            stderr=subprocess.PIPE if cluster.is_chief else subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._looked_at = time.monotonic()
        self._stopped_since: float | None = None
        self._output = self.process.stderr if cluster.is_chief else self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended_by_a_signal(self) -> bool:
        """Whether it was not asked to end, or could not yet do so in order."""
        return (self.process.poll() or 0) < 0

    @property
    def ended_in_order(self) -> bool:
        """Whether it came to its own end, be it with an error."""
        code = self.process.poll()
        return code is not None and code >= 0

    @property
    def was_killed(self) -> bool:
        """Whether it ended by a signal that nobody sends to ask for an end."""
        return self.ended_by_a_signal and -self.process.returncode not in STOPS

    @property
    def was_lost(self) -> bool:
        """Whether it was killed, or has ended because another task was lost."""
        return self.was_killed or self.process.poll() == PeerLostError.exit_code

    @property
    def killed_by(self) -> str:
        """The signal that ended it, in brackets after a space; empty without one."""
        code = self.process.poll() or 0
        return f" ({signal.Signals(-code).name})" if code < 0 else ""

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP keeps it from running at this moment."""
        try:
            status = psutil.Process(self.process.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status == psutil.STATUS_STOPPED

    def seconds_stopped(self) -> float:
        """How long SIGSTOP has kept it from running, as far as calls of this saw it."""
        is_stopped = self.is_stopped
        now = time.monotonic()
        if not is_stopped or now - self._looked_at > _SECONDS_BETWEEN_LOOKS:
            self._stopped_since = None
        self._looked_at = now
        if not is_stopped:
            return 0.0
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since

    def run_on(self, cores: Sequence[int]) -> None:
        """Keeps it to some of the cores."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self.process.pid, cores)

    def last_lines(self) -> Sequence[str]:
        self._reader.join(timeout=1)
        return tuple(self._lines)

    def send(self, number: int) -> None:
        """Sends a signal, if the process has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def tell(self, number: int) -> None:
        """The same, the first time only: a second signal would end it at once."""
        if not self._is_told:
            self._is_told = True
            self.send(number)

    def close(self) -> None:
        self.process.wait()
        self._reader.join()
        if self._output is not None:
            self._output.close()

    def _read(self) -> None:
        """Keeps the last lines, and all of them in the log once its folder exists."""
        waiting: list[str] = []
        for line in self._output or ():
            self._lines.append(line.rstrip("\n"))
            waiting.append(line)
            # A task that nobody reads stands still, so that reading goes on whatever
            # becomes of the lines.
            with contextlib.suppress(OSError):
                self._show(line)
            if self._log.parent.is_dir():
                self._append(waiting)
        if waiting and self._log.parent.is_dir():
            self._append(waiting)

    def _show(self, line: str) -> None:
        if self.cluster.is_chief:
            sys.stderr.write(line)
        elif self._is_shown:
            # From several threads: a line at a time.
            sys.stdout.write(line)
            sys.stdout.flush()

    def _append(self, lines: list[str]) -> None:
        with (
            contextlib.suppress(OSError),
            self._log.open("a", encoding="utf-8") as file,
        ):
            file.writelines(lines)
        lines.clear()


# Linux, include/uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Makes this process end when the launcher that started it does, however it ends.

    The kernel sends SIGKILL, which reaches even a stopped process. Where there is no
    such call, as on macOS, tasks of a launcher killed by SIGKILL go on.
    """
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the call took effect.
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)


def has_launcher() -> bool:
    """Returns whether another process started this one and starts lost tasks again."""
    return LAUNCHER_PID in os.environ
