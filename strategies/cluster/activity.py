"""Work that keeps the threads of this process busy, seen from another of its threads.

A task whose main thread is in TensorFlow, called by a step or a collective, waits for
other tasks, unless there is a sign of work. This module does not import TensorFlow.
"""

import contextlib
import enum
import os
import pathlib
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType

_ROOT = pathlib.Path(__file__).parents[2]
# Steps and collectives are called from `strategies`, but not from its helpers.
_WAITING, _HELPERS = f"{_ROOT}/strategies/", f"{_ROOT}/strategies/common/"
_PROJECT = (_WAITING, f"{_ROOT}/models/", f"{_ROOT}/trainers/")
_STANDARD = ("<frozen ", f"{sysconfig.get_paths()['stdlib']}/")
_TENSORFLOW = "/tensorflow/python/"
# In TensorFlow 2.21, the files that call Python from an operation and from a generator
# of tf.data.
_CALLED = "tensorflow/python/ops/script_ops.py"
_GENERATOR = "tensorflow/python/data/ops/from_generator_op.py"
_SECONDS_BETWEEN_SAMPLES = 0.3
# A task that waits took 0.03 cores, for its probes of other tasks. On a busy machine a
# task that computes does not have a whole core.
_LEAST_CORES = 0.2


class Sign(enum.Enum):
    """Sign of work. Its value completes "which for 12 s has been ..."."""

    MAIN_THREAD = "in {where}"
    INPUT = "in its input: Python, {where}"
    GRAPH = "in Python that TensorFlow calls for an input, layer or loss: {where}"
    DISK = "waiting for a disk: {where}"
    COMPUTES = "computing in TensorFlow"
    NONE = "in TensorFlow"


def observe_activity() -> tuple[Sign, str]:
    """Returns a sign of work with its function or file, after 0.3 seconds."""
    blocked, cpu_seconds = _blocked_threads(), time.process_time()
    time.sleep(_SECONDS_BETWEEN_SAMPLES)
    cores = (time.process_time() - cpu_seconds) / _SECONDS_BETWEEN_SAMPLES
    file = next((blocked[call] for call in _blocked_threads() if call in blocked), "")
    stacks = sys._current_frames()
    main = stacks.pop(threading.main_thread().ident or 0)
    waits = _own_frames(main)[0].f_code.co_filename.startswith(_WAITING)
    if waits or _TENSORFLOW in main.f_code.co_filename:
        for frame in stacks.values():
            sign = _call_from_tensorflow(frame)
            if sign is not None:
                return sign, _where(frame)
    if file:
        return Sign.DISK, file if waits else f"{_where(main)}, {file}"
    if not waits:
        return Sign.MAIN_THREAD, _where(main)
    return (Sign.COMPUTES if cores > _LEAST_CORES else Sign.NONE), ""


def _call_from_tensorflow(frame: FrameType) -> Sign | None:
    """Returns the sign of a thread in which TensorFlow has called Python, or None."""
    files = [each.f_code.co_filename for each, _ in traceback.walk_stack(frame)]
    if not any(file.endswith(_CALLED) for file in files):
        return None
    is_input = any(file.endswith(_GENERATOR) for file in files)
    return Sign.INPUT if is_input else Sign.GRAPH


def _own_frames(frame: FrameType) -> list[FrameType]:
    """Returns the frames of the project and the user, the last call first."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    return [each for each in frames if _is_own(each.f_code.co_filename)] or frames


def _is_own(file: str) -> bool:
    if file.startswith(_PROJECT):
        return not file.startswith(_HELPERS)
    return not file.startswith(_STANDARD) and "-packages/" not in file


def _where(frame: FrameType) -> str:
    """Returns the innermost function of the project or the user, with its line.

    If AutoGraph has written all of them, it is the outermost, without a line.
    """
    own = _own_frames(frame)
    # AutoGraph divides a function into several, in a file with another name.
    written = [f for f in own if "__autograph_generated" not in f.f_code.co_filename]
    if not written:
        return own[-1].f_code.co_name
    code, line = written[0].f_code, written[0].f_lineno
    return f"{code.co_name} ({pathlib.Path(code.co_filename).name}:{line})"


def _blocked_threads() -> dict[str, str]:
    """Returns the files that threads wait for, by thread and system call."""
    found = {}
    for thread in pathlib.Path("/proc/self/task").glob("*"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError, ValueError, IndexError):
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            call = (thread / "syscall").read_text()
            # Calls that read, write or sync a file begin with its descriptor; waits for
            # locks and timers with an address, or a number up to 2.
            descriptor, path = int(call.split()[1], 16), ""
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{descriptor}")
            if descriptor > 2 and path.startswith("/") and path[:5] != "/dev/":
                found[f"{thread.name} {call}"] = path
            elif state == "D":  # An uninterruptible wait, in calls without one.
                found[f"{thread.name} {call}"] = "a file"
    return found
