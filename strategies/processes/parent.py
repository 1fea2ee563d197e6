"""Ties between a process and its parent (man 2 prctl)."""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator

LAUNCHER_PID = "KDS_LAUNCHER_PID"

# Linux, include/uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

# The attribute belongs to the process, not to the thread that changes it.
_ADOPTION = threading.Lock()


def end_with_launcher() -> None:
    """Makes the kernel kill this process when its launcher ends, for any reason."""
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher is None:
        return
    # SIGKILL reaches even a suspended process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The launcher may have died before the call took effect.
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)


def has_launcher() -> bool:
    """Returns whether another process started this one and starts lost tasks again."""
    return LAUNCHER_PID in os.environ


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of its descendants that lose theirs in the block.

    The kernel gives such a process to the nearest ancestor with this attribute.
    """
    library = ctypes.CDLL(None)
    with _ADOPTION:
        before = ctypes.c_int()
        library.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        library.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            library.prctl(_PR_SET_CHILD_SUBREAPER, before.value)
