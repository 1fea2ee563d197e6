"""Environment variables of a template and of the processes forked from it."""

import ctypes
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping

from strategies.processes.parent import LAUNCHER_PID
from strategies.processes.process_title import ROOM_VARIABLE

# Set in a forked process: its ID, and which variables its template was started with.
FORKED = "KDS_FORKED"
# Set in a forked process: KiB of files, nearly all TensorFlow's code, that its template
# has mapped and loaded.
TEMPLATE_FILE_KIB = "KDS_TEMPLATE_FILE_KIB"

# Variables that TensorFlow, Keras and Python do not read when they are imported.
_READ_LATER = {
    *("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "COLUMNS", "LINES"),
    *("PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST"),
    *(LAUNCHER_PID, FORKED, TEMPLATE_FILE_KIB, ROOM_VARIABLE),
}

# glibc reads these when a process starts (malloc/malloc.c), and `mallopt` sets the same
# later (man 3 mallopt; the numbers are in malloc.h).
_ALLOCATOR_PARAMETERS = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_MMAP_MAX_": -4,
}
_LARGEST_INT = 2**31 - 1


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that must be the same in a template and its forks."""
    later = {*_READ_LATER, *_ALLOCATOR_PARAMETERS}
    return {name: v for name, v in environment.items() if name not in later}


def own_mark(environment: Mapping[str, str]) -> str:
    """Returns the value of FORKED in this process if a template has forked it."""
    text = json.dumps(sorted(read_at_import(environment).items()))
    return f"{os.getpid()}:{hashlib.sha256(text.encode()).hexdigest()}"


def file_kib() -> int:
    """Returns the KiB of files that this process has mapped and loaded (RssFile)."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    (kibibytes,) = re.findall(r"^RssFile:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kibibytes)


def file_kib_of_template_alone(environment: Mapping[str, str]) -> int:
    """Returns the KiB of files that only the template of this process has loaded.

    They are none in a new program, which has done the imports itself.
    """
    if environment.get(FORKED, "").partition(":")[0] != str(os.getpid()):
        return 0
    return max(int(environment[TEMPLATE_FILE_KIB]) - file_kib(), 0)


def apply_allocator_settings(environment: Mapping[str, str]) -> None:
    """Sets up the allocator as glibc does at the start of a process."""
    for name, parameter in _ALLOCATOR_PARAMETERS.items():
        text = environment.get(name, "")
        if text.isdecimal():
            ctypes.CDLL(None).mallopt(parameter, min(int(text), _LARGEST_INT))
