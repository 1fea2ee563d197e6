"""TensorFlow server that runs until the chief shuts it down."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pathlib
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.cluster.inquiry import answer_questions
from strategies.cluster.probes import PeerProbe, wait_until_gone
from strategies.cluster.rendezvous import hold_port, wait_for_tasks
from strategies.cluster.resolver import cluster_spec
from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import requests_to_stop

if TYPE_CHECKING:
    from strategies.config import StrategyConfig

# TensorFlow chooses one thread on one core. A scheduled function that calls another
# function then waits for ever (TensorFlow 2.21, worker pinned with sched_setaffinity).
_LEAST_INTER_OP_THREADS = 4
_POLL_SECONDS = 0.2
_SECONDS_UNTIL_LOST = 3.0
_SECONDS_TO_GIVE_BACK = 10.0


def serve(config: StrategyConfig, cluster: Cluster, shutdown_file: pathlib.Path) -> int:
    """Serves until the chief shuts this task down or is dead.

    TensorFlow's own `Server.join` outlives a dead chief for ever.

    Returns:
      The chief's exit code, or 128 + n after signal n.

    Raises:
      UsageError: Another process uses this task's address.
      ClusterIncompleteError: A task did not start in time.
      PeerLostError: The chief died without a shutdown file.
    """
    # A file of an earlier run would end this task at once.
    shutdown_file.unlink(missing_ok=True)
    # Reports a port that is in use before TensorFlow starts its server.
    with hold_port(cluster):
        pass
    signals = _Signals(config.stop_timeout_seconds)
    server = tf.distribute.Server(
        cluster_spec(cluster),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=server_threads(),
    )
    del server  # It serves until the process ends.
    answer_questions(cluster)
    wait_for_tasks(cluster.peers(), config.startup_timeout_seconds, signals.received)
    if signals.received():
        return signals.exit_code
    address = cluster.addresses["chief"][0]
    chief = PeerProbe(
        "chief-0", address, _SECONDS_UNTIL_LOST, config.peer_timeout_seconds
    )
    while not signals.is_over():
        exit_code = _read_once(shutdown_file)
        if exit_code == PeerLostError.exit_code:
            # The chief makes no progress, perhaps because of this task.
            faulthandler.dump_traceback(all_threads=True)
        if exit_code is not None:
            # The chief still releases its resources here.
            wait_until_gone([address], _SECONDS_TO_GIVE_BACK)
            _remove_empty_folders_of(shutdown_file)
            return exit_code
        chief.require()
        time.sleep(_POLL_SECONDS)
    # An orderly end would cancel the closures under way, and the chief would fail with
    # them. After a sudden end another worker runs them (TensorFlow 2.21).
    os._exit(signals.exit_code)


class _Signals:
    """Handlers of SIGINT and SIGTERM that leave the chief time for a checkpoint.

    Schedulers send a signal to all tasks at once, and the chief's checkpoint reads the
    variables of this task. A second signal ends the process at once.
    """

    def __init__(self, stop_timeout_seconds: float) -> None:
        self.exit_code = 0
        self._stop_timeout_seconds = stop_timeout_seconds
        self._deadline: float | None = None
        self._handled = requests_to_stop()
        for number in self._handled:
            signal.signal(number, self._receive)

    def received(self) -> bool:
        return self._deadline is not None

    def is_over(self) -> bool:
        """Returns whether a signal was received and the chief's time is up."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.exit_code = 128 + number
        self._deadline = time.monotonic() + self._stop_timeout_seconds
        for each in self._handled:
            signal.signal(each, signal.SIG_DFL)


def server_threads() -> tf.compat.v1.ConfigProto:
    """Returns a server's configuration with the thread counts of this process."""
    # A server does not read the settings of `tf.config.threading` itself.
    threading = tf.config.threading
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threading.get_intra_op_parallelism_threads(),
        inter_op_parallelism_threads=max(
            _LEAST_INTER_OP_THREADS, threading.get_inter_op_parallelism_threads()
        ),
    )


def _read_once(shutdown_file: pathlib.Path) -> int | None:
    """Returns the exit code in the file and removes the file; None without a file."""
    # The file may exist before its content does.
    text = shutdown_file.read_text(encoding="utf-8") if shutdown_file.exists() else ""
    if not text:
        return None
    shutdown_file.unlink()
    return int(text)


def _remove_empty_folders_of(shutdown_file: pathlib.Path) -> None:
    """Removes the two folders above the file if they are empty.

    They are empty on a machine without other files of the run, or after a rejected run.
    The chief must be gone: it writes the files of other tasks into the same folders,
    and `tf.io.write_file` fails if they vanish after it has made them.
    """
    for folder in list(shutdown_file.parents)[:2]:
        with contextlib.suppress(OSError):
            folder.rmdir()
