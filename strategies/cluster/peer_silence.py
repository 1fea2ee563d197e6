"""Silent tasks: suspended ones, and those whose machine is off or unreachable.

A dead task closes its connections, and TensorFlow fails at once. For a silent one it
waits without limit. Its limit for collectives is no substitute. When a collective of
`MultiWorkerMirroredStrategy` reaches it, the operation fails while its messages are
still under way. They then use the freed memory of the step: 3 of 8 runs with a
suspended leader ended with SIGABRT or SIGSEGV in
`tsl::CancellationManager::DeregisterCallback` (TensorFlow 2.21, called by
tensorflow/core/distributed_runtime/cancellable_call.h). An operation whose connection
is lost waits for its messages first (tensorflow/core/common_runtime/ring_reducer.cc).
"""

import contextlib
import threading
import time
from collections.abc import Mapping

import psutil

from strategies.cluster.connections import disconnect, limit_silence
from strategies.cluster.probes import PeerState, for_each, peer_state
from strategies.cluster.spec import Cluster

_SECONDS_BETWEEN_PROBES = 0.3


class SilenceWatchdog:
    """Thread that disconnects tasks which have been silent for too long."""

    def __init__(self, cluster: Cluster, patience_seconds: float):
        """Watches nothing until `start`."""
        self._cluster = cluster
        self._patience_seconds = patience_seconds
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stops the thread, which may be waiting for an answer for a second."""
        self._ended.set()

    def _watch(self) -> None:
        states = PeerStates(self._cluster.peers(), self._patience_seconds)
        while not self._ended.wait(_SECONDS_BETWEEN_PROBES):
            states.probe()


class PeerStates:
    """Record of the tasks that are dead or unresponsive."""

    def __init__(self, tasks: Mapping[str, str], patience_seconds: float):
        """Starts as if all tasks had just answered."""
        self._tasks = tasks
        self._patience_seconds = patience_seconds
        self._heard_at = dict.fromkeys(tasks, time.monotonic())
        self._missing: dict[str, str] = {}

    def probe(self) -> Mapping[str, str]:
        """Probes all tasks, and disconnects tasks that are silent for too long.

        Returns:
          Problem of each missing task, as words that follow its name. A missing task
          stays missing until it answers again.
        """
        # A shortage of this process, as of file descriptors, says nothing of others.
        with contextlib.suppress(OSError, RuntimeError, psutil.Error):
            self._probe_all()
        return dict(self._missing)

    def _probe_all(self) -> None:
        # Every time, because gRPC opens new connections.
        limit_silence(self._tasks.values(), self._patience_seconds)
        found = for_each(self._tasks, peer_state)
        now = time.monotonic()
        for task, present in found.items():
            # A refused connection is an answer, too: of the task's machine.
            if present is not PeerState.SILENT:
                self._heard_at[task] = now
            if present is PeerState.SERVING:
                self._missing.pop(task, None)
            elif present is PeerState.DEAD:
                self._missing[task] = "was lost"
            elif now - self._heard_at[task] > self._patience_seconds:
                # Not over "was lost": the machine of a dead task may go silent later.
                self._missing.setdefault(task, "does not answer")
                disconnect(self._tasks[task])
