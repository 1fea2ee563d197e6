"""A process that was forked from a template and is a child of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

_SECONDS_BETWEEN_LOOKS = 0.01


class ForkedProcess:
    """Process that a template has forked, with the methods of `subprocess.Popen`."""

    def __init__(
        self,
        args: Sequence[str],
        pid: int,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
    ):
        self.args = args
        self.pid = pid
        # -N for the death by signal N. Whoever reads it has polled or waited before.
        self.returncode: int | Any = None
        self.stdout = stdout
        self.stderr = stderr
        # Only one thread may ask the kernel for the end, which it reports once.
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Returns the exit code, or None if the process still runs."""
        # A signal handler may call this while the same thread holds the lock, which
        # asks the kernel then.
        if self._lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    if pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._lock.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, for some seconds at most, and returns the exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return code

    def send_signal(self, number: int, /) -> None:
        """Sends a signal, unless the process is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


# Process that `strategies.processes.starter` starts.
Process = ForkedProcess | subprocess.Popen[str]
