"""A task does not outlive the launcher that started it. Does not import TensorFlow."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from strategies.launched_task import LAUNCHER_PID

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
