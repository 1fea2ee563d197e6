"""Ends a task that makes no progress, and says where it stands.

The main thread of such a task waits within TensorFlow, often for another task, and can
neither be interrupted nor end in order. A thread beside it can still look, print and
end the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import tensorflow as tf

from strategies.cluster.rendezvous import REMEDY, is_answering, is_listening
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from trainers.loop.loop import StepReport

# Of the timeout: how often is looked, and after how much of it steps are counted.
_LOOKS_PER_TIMEOUT = 20
_MOST_SECONDS_BETWEEN_LOOKS = 5.0
_PART_BEFORE_STEPS_ARE_READ = 0.5
# For what other tasks print meanwhile.
_SECONDS_TO_LEAVE = 1.5
_MOST_SECONDS_FOR_CHIEF = 10.0
_SECONDS_BETWEEN_LOOKS_AT_CHIEF = 0.1

_IN_WORDS = {
    "startup": "starting",
    "trace": "tracing",
    "train": "training",
    "eval": "evaluating",
    "checkpoint": "saving",
    "summary": "writing summaries",
}


class StallWatch:
    """Watches this process as long as the context lasts. A hook, and told by a clock.

    Progress is whatever the clock measures when it begins or ends, so every call of the
    inner loop, and within a call every step that is applied.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        cluster: Cluster,
        console: Console,
        dismiss: Callable[[int], None] = lambda exit_code: None,
    ):
        """Starts nothing yet.

        Args:
          timeout_seconds: how long there may be no progress; None for ever.
          cluster: whose task this is.
          console: told which task has not come how far.
          dismiss: tells tasks that serve this one to end with an exit code.
        """
        self._timeout_seconds = timeout_seconds
        self._cluster = cluster
        self._console = console
        self._dismiss = dismiss
        self._doing = "startup"
        self._applied: tf.Variable | None = None
        self._step = 0
        self._idle_seconds = 0.0
        self._read_before: int | None = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StallWatch:
        if self._timeout_seconds is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, kind: str) -> None:
        """A piece of work of this kind has begun or ended."""
        self._doing = kind
        self._read_before = None
        self._idle_seconds = 0.0

    def count(self, applied: tf.Variable) -> None:
        """Takes the counter of applied updates, to see them within a long call."""
        self._applied = applied

    def begin(self, step: int) -> None:
        """Steps go on from here."""
        self._step = step

    def __call__(self, report: StepReport) -> None:
        self._step = report.step

    def _watch(self) -> None:
        timeout = self._timeout_seconds or 0.0
        interval = min(timeout / _LOOKS_PER_TIMEOUT, _MOST_SECONDS_BETWEEN_LOOKS)
        before = time.monotonic()
        while not self._ended.wait(interval):
            now = time.monotonic()
            # If the whole process stood still, as after Ctrl-Z, that is no stall of it.
            self._idle_seconds += min(now - before, 2 * interval)
            before = now
            if self._idle_seconds > timeout:
                self._end()
            elif self._idle_seconds > _PART_BEFORE_STEPS_ARE_READ * timeout:
                self._start_reading()

    def _start_reading(self) -> None:
        """Reads how many updates were applied in a thread, which may wait for ever."""
        reads = self._reader is not None and self._reader.is_alive()
        if self._applied is not None and not reads:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _read(self) -> None:
        if self._applied is None:
            return
        # Where the counter is lost the main thread learns of it by itself.
        with contextlib.suppress(tf.errors.OpError):
            applied = int(self._applied.numpy())
            if self._read_before not in (None, applied):
                self._idle_seconds = 0.0
            self._read_before = applied
            self._step = max(self._step, applied)

    def _end(self) -> None:
        """Prints where this task stands, and ends the process."""
        self._console.dump_stacks()
        self._console.fail(self._in_words())
        if self._cluster.is_chief:
            telling = threading.Thread(
                target=self._dismiss, args=(ExitCode.PEER_LOST,), daemon=True
            )
            telling.start()
            telling.join(_SECONDS_TO_LEAVE)
            time.sleep(_SECONDS_TO_LEAVE)
        else:
            self._let_chief_go_first()
        self._console.close()
        os._exit(ExitCode.PEER_LOST)

    def _let_chief_go_first(self) -> None:
        """Otherwise the chief would say that this task was lost."""
        deadline = time.monotonic() + _MOST_SECONDS_FOR_CHIEF
        while is_listening(self._cluster.computing[0]) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS_AT_CHIEF)

    def _in_words(self) -> str:
        doing = _IN_WORDS.get(self._doing, self._doing)
        log = self._console.log_name
        where = f"in {log}" if log else "above"
        return (
            f"step {self._step + 1} has not been reached by {self._who_is_behind()}: "
            f"no progress in {self._timeout_seconds:g} s of {doing}; this task's "
            f"stacks are {where}; {REMEDY}"
        )

    def _who_is_behind(self) -> str:
        names = [f"{task} at {address}" for task, address in self._silent_peers()]
        if names:
            return f"{', '.join(names)}, which does not answer"
        return self._cluster.task if self._cluster.addresses else "this run"

    def _silent_peers(self) -> list[tuple[str, str]]:
        peers = list(self._cluster.peers().items())
        with ThreadPoolExecutor(max_workers=32) as pool:
            answers = pool.map(is_answering, (address for _, address in peers))
        return [peer for peer, there in zip(peers, answers, strict=True) if not there]
