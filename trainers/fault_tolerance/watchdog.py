"""Watchdog thread: ends a task that makes no progress.

The main thread of a stalled task waits inside TensorFlow, often for another task. It
can neither be interrupted nor shut down cleanly. A second thread can still observe,
print and end the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from strategies.cluster.activity import Sign
from strategies.cluster.inquiry import Report, answer_questions, ask_peers
from strategies.cluster.probes import REMEDY, PeerState, is_listening
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from trainers.fault_tolerance.task_behind import describe_tasks_behind
from trainers.loop.loop import StepEvent

# Checks per timeout, and the longest interval between checks in seconds.
_LOOKS_PER_TIMEOUT = 20
_MOST_SECONDS_BETWEEN_LOOKS = 5.0
# Fraction of the timeout after which the counter of applied updates is read.
_PART_BEFORE_STEPS_ARE_READ = 0.5
# Seconds in which the other tasks can print their own state.
_SECONDS_TO_LEAVE = 1.5
_MOST_SECONDS_FOR_CHIEF = 10.0
_SECONDS_BETWEEN_LOOKS_AT_CHIEF = 0.1
# Part of the timeout without progress after which a task ends with others.
_PART_BEFORE_ENDING_WITH_OTHERS = 0.5
# Kind of work after a measured block has ended.
_BETWEEN_BLOCKS = "running callbacks"
# Kind of work of a program outside of its calls of `fit`, which may take any time.
PROGRAM = "program"


class Watchdog:
    """Watchdog of this process while the context lasts. A callback and clock listener.

    Each beginning or end of a block that the clock measures is progress. So is each
    update that is applied within a call of the inner loop, and each batch that a
    resumed run reads again.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        cluster: Cluster,
        console: Console,
        shutdown_servers: Callable[[int], None],
    ):
        """Prepares the thread; `__enter__` starts it.

        Args:
          timeout_seconds: Longest time without progress, in seconds; None for no limit.
          cluster: Cluster of this task.
          console: Output for the tasks that are behind and their steps.
          shutdown_servers: Function that shuts down the tasks that serve this one, with
            an exit code.
        """
        self._timeout_seconds = timeout_seconds
        self._cluster = cluster
        self._console = console
        self._shutdown_servers = shutdown_servers
        self._doing = "startup"
        self._counters: tuple[tf.Variable, ...] = ()
        self._step = 0
        self._idle_seconds = 0.0
        self._read_before: list[int] | None = None
        self._reader: threading.Thread | None = None
        self._is_over = False
        self._is_asked = False
        # Set when a task without progress asks this one, and at the end.
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        if self._cluster.addresses:
            answer_questions(self._cluster, self._report, self._receive_question)
        if self._timeout_seconds is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, kind: str | None) -> None:
        """Records the begin of work of a kind, or with None its end."""
        self._doing = kind or _BETWEEN_BLOCKS
        self.progress()

    def progress(self) -> None:
        """Records that the present work proceeds."""
        self._read_before = None
        self._idle_seconds = 0.0

    def count(self, applied: tf.Variable, *others: tf.Variable) -> None:
        """Stores the counter of applied updates, and others that change in a call."""
        self._counters = (applied, *others)

    def begin(self, step: int) -> None:
        """Sets the step at which training starts or continues."""
        self._step = step

    def __call__(self, event: StepEvent) -> None:
        self._step = event.step

    def _watch(self) -> None:
        timeout = self._timeout_seconds or 0.0
        interval = min(timeout / _LOOKS_PER_TIMEOUT, _MOST_SECONDS_BETWEEN_LOOKS)
        before = time.monotonic()
        while not self._is_over:
            self._woken.wait(interval)
            self._woken.clear()
            now = time.monotonic()
            # At most two intervals count: if the whole process was suspended, as after
            # Ctrl-Z, the time is no stall.
            if self._doing != PROGRAM:
                self._idle_seconds += min(now - before, 2 * interval)
            before = now
            is_asked, self._is_asked = self._is_asked, False
            # All end together: a task that ends later would blame the others.
            limit = timeout * (_PART_BEFORE_ENDING_WITH_OTHERS if is_asked else 1.0)
            if self._idle_seconds > limit and not self._is_over:
                self._end()
            elif self._idle_seconds > _PART_BEFORE_STEPS_ARE_READ * timeout:
                self._start_reading()

    def _receive_question(self) -> None:
        """Learns that another task has made no progress for too long."""
        self._is_asked = True
        self._woken.set()

    def _report(self) -> Report:
        return Report(
            step=self._step, doing=self._doing, idle_seconds=self._idle_seconds
        )

    def _start_reading(self) -> None:
        """Reads the counters in another thread, which may block forever."""
        reads = self._reader is not None and self._reader.is_alive()
        if self._counters and not reads:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _read(self) -> None:
        # If the task that holds the counter is dead, the main thread receives the error
        # itself.
        with contextlib.suppress(tf.errors.OpError):
            counts = [int(counter.numpy()) for counter in self._counters]
            if self._read_before not in (None, counts):
                self._idle_seconds = 0.0
            self._read_before = counts
            self._step = max(self._step, counts[0])

    def _end(self) -> None:
        """Prints the state of this task and ends the process.

        Waits on if another task is busy with a program's own code, which delays all.
        """
        own = self._report().observed()
        answers = ask_peers(self._cluster) if self._cluster.addresses else {}
        if any(map(_runs_program, answers.values())):
            self._idle_seconds = 0.0
            return
        line = self._in_words(own, answers)
        # Each with a deadline: the log may be on the disk that does not respond.
        self._attempt(self._console.dump_stacks)
        self._attempt(lambda: self._console.fail(line))
        if self._cluster.is_chief:
            self._attempt(lambda: self._shutdown_servers(ExitCode.PEER_LOST))
            time.sleep(_SECONDS_TO_LEAVE)
        else:
            self._let_chief_go_first()
        self._attempt(self._console.close)
        # sys.exit would end only this thread; the main thread is blocked.
        os._exit(ExitCode.PEER_LOST)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Calls a function that may block, and waits for a limited time."""
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_LEAVE)

    def _let_chief_go_first(self) -> None:
        """Waits until the chief has exited.

        The chief would otherwise report this task as dead.
        """
        deadline = time.monotonic() + _MOST_SECONDS_FOR_CHIEF
        while is_listening(self._cluster.computing[0]) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS_AT_CHIEF)

    def _in_words(self, own: Report, answers: Mapping[str, Report | PeerState]) -> str:
        log = self._console.log_name
        where = f"in {log}" if log else "above"
        return (
            f"{describe_tasks_behind(self._cluster, own, answers)}; this task made no "
            f"progress in {own.idle_seconds:.0f} s, and its stacks are {where}; "
            f"{REMEDY}"
        )


def _runs_program(answer: Report | PeerState) -> bool:
    """Returns whether a task is busy with a program's own code, and does not wait."""
    if not isinstance(answer, Report):
        return False
    return answer.doing == PROGRAM and answer.sign is not Sign.NONE
