"""Name, command line and environment of this process, as others see them.

`ps`, `pgrep -f` and /proc show the memory in which the kernel put both when the process
was started. A forked process would show its template's. The areas have a fixed
size; `ROOM` reserves a part of them (Linux, fs/proc/base.c, `get_mm_cmdline` and
`environ_read`).
"""

import ctypes
import pathlib
from collections.abc import Mapping, Sequence

# Name and value of a variable, and an argument, that reserve memory at the start.
ROOM_VARIABLE, ROOM = "KDS_ROOM", "." * 16_384
ROOM_ARGUMENT = "." * 2_048

# Positions in /proc/self/stat, counted from zero behind the name (man 5 proc_pid_stat).
_ARG_START, _ENV_END = 45, 48

# Names of processes that start others and do not compute.
TEMPLATE = "template"
LAUNCHER = "launcher"

# Linux, include/uapi/linux/prctl.h.
_PR_SET_NAME = 15


def set_name(name: str) -> None:
    """Sets the name of this process in `top` and `ps -e`, at most 15 characters."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Shows a command line and an environment in place of the process's first ones.

    Variables without room are left out.

    Args:
      command: Words of the command line.
      environment: Variables by name. The C library must no longer use the first ones:
        `os.environ.clear()` releases them.
    """
    stat = pathlib.Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    fields = stat.rpartition(")")[2].split()
    # The numbers are zero where the kernel hides them.
    arg_start, arg_end, env_start, env_end = (
        int(text) for text in fields[_ARG_START : _ENV_END + 1]
    )
    if arg_start:
        title = " ".join(command).encode(errors="surrogateescape")
        # The kernel takes a title up to its first zero if the last byte is not one.
        _fill(arg_start, arg_end - 1, title[: arg_end - arg_start - 2])
        ctypes.memset(arg_end - 1, 0x20, 1)
    if env_start:
        _fill(env_start, env_end, _block(environment, env_end - env_start))


def _fill(start: int, end: int, content: bytes) -> None:
    """Writes content to an area of this process's memory, and zeros behind it."""
    ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


def _block(environment: Mapping[str, str], size: int) -> bytes:
    """Returns as many variables as have room, each with a zero behind it."""
    block = b""
    for name, value in environment.items():
        entry = f"{name}={value}".encode(errors="surrogateescape") + b"\0"
        if len(block) + len(entry) < size:
            block += entry
    return block
