"""A process that lends its devices to the chief and has no program of its own."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pathlib
import signal
import time
from types import FrameType

import tensorflow as tf

from strategies.cluster.rendezvous import (
    Needed,
    answering,
    is_listening,
    wait_for_tasks,
)
from strategies.cluster.resolver import cluster_spec
from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import requests_to_stop

# With one thread, which TensorFlow chooses on one core, a scheduled function that
# calls another waits for ever (TensorFlow 2.21, worker pinned with sched_setaffinity).
_LEAST_INTER_OP_THREADS = 4
_POLL_SECONDS = 0.2
_SECONDS_UNTIL_LOST = 3.0
_SECONDS_TO_GIVE_BACK = 10.0
_SECONDS_AFTER_SIGNAL = 10.0


def serve(
    cluster: Cluster,
    startup_timeout_seconds: float,
    peer_timeout_seconds: float,
    ending: str,
) -> int:
    """Serves until the chief dismisses this task or is gone.

    TensorFlow's own `Server.join` outlives a dead chief for ever.

    Args:
      cluster: whose worker or parameter server this is.
      startup_timeout_seconds: how long the other tasks may take to appear.
      peer_timeout_seconds: how long nothing may come back from the chief's machine.
      ending: path, with {task} for this task's name, of the file that the chief
        writes when it ends.

    Returns:
      The chief's exit code, or 128 + n after signal n.

    Raises:
      UsageError: this task's address is taken.
      ClusterIncompleteError: a task did not appear in time.
      PeerLostError: the chief disappeared without a word.
    """
    dismissal = pathlib.Path(ending.format(task=cluster.task))
    dismissal.unlink(missing_ok=True)
    with answering(cluster):
        pass
    signals = _Signals()
    server = tf.distribute.Server(
        cluster_spec(cluster),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=server_threads(),
    )
    del server  # It serves until the process ends.
    wait_for_tasks(cluster.peers(), startup_timeout_seconds, signals.received)
    if signals.received():
        return signals.exit_code
    address = cluster.addresses["chief"][0]
    chief = Needed("chief-0", address, _SECONDS_UNTIL_LOST, peer_timeout_seconds)
    while not signals.is_over():
        exit_code = _read_once(dismissal)
        if exit_code == PeerLostError.exit_code:
            # The chief makes no progress, and it may be because of this task.
            faulthandler.dump_traceback(all_threads=True)
        if exit_code is not None:
            return _wait_until_gone(address, exit_code)
        chief.require()
        time.sleep(_POLL_SECONDS)
    # An orderly end would fail the closures under way as cancelled, and with them the
    # chief. After a sudden one another worker runs them (TensorFlow 2.21).
    os._exit(signals.exit_code)


class _Signals:
    """Gives the chief time for a checkpoint after the first SIGINT or SIGTERM.

    Schedulers send it to all tasks at once, and the chief's checkpoint reads what is
    held here. A second signal ends the process at once.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self._deadline: float | None = None
        self._handled = requests_to_stop()
        for number in self._handled:
            signal.signal(number, self._receive)

    def received(self) -> bool:
        return self._deadline is not None

    def is_over(self) -> bool:
        """Whether one was received and the chief's time is up."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.exit_code = 128 + number
        self._deadline = time.monotonic() + _SECONDS_AFTER_SIGNAL
        for each in self._handled:
            signal.signal(each, signal.SIG_DFL)


def server_threads() -> tf.compat.v1.ConfigProto:
    """Those set for this process; a server does not look for them itself."""
    threading = tf.config.threading
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threading.get_intra_op_parallelism_threads(),
        inter_op_parallelism_threads=max(
            _LEAST_INTER_OP_THREADS, threading.get_inter_op_parallelism_threads()
        ),
    )


def _wait_until_gone(chief: str, exit_code: int) -> int:
    """Stays until the chief has ended, which still gives back what it holds here."""
    deadline = time.monotonic() + _SECONDS_TO_GIVE_BACK
    while is_listening(chief) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return exit_code


def _read_once(dismissal: pathlib.Path) -> int | None:
    """The exit code in the file, which is removed; None if it is not written yet.

    So are the folders it was written into if they hold nothing else, as on a machine
    of its own, or after a run that was refused.
    """
    text = dismissal.read_text(encoding="utf-8") if dismissal.exists() else ""
    if not text:
        return None
    dismissal.unlink()
    for folder in list(dismissal.parents)[:2]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return int(text)
