"""A process that lends its devices to the chief and has no program of its own."""

from __future__ import annotations

import pathlib
import time

import tensorflow as tf

from strategies.cluster import Cluster
from strategies.rendezvous import is_listening, wait_for_tasks
from strategies.resolver import cluster_spec

LOST_PEER = 138
# With one thread, which TensorFlow chooses on one core, a scheduled function that
# calls another waits for ever (TensorFlow 2.21, worker pinned with sched_setaffinity).
_LEAST_INTER_OP_THREADS = 4
_POLL_SECONDS = 0.2
_SECONDS_UNTIL_LOST = 3.0
_SECONDS_TO_GIVE_BACK = 10.0


def serve(cluster: Cluster, startup_timeout_seconds: float, ending: str) -> int:
    """Serves until the chief dismisses this task or is gone.

    TensorFlow's own `Server.join` outlives a dead chief for ever.

    Args:
      cluster: whose worker or parameter server this is.
      startup_timeout_seconds: how long the chief may take to appear.
      ending: path, with {task} for this task's name, of the file that the chief
        writes when it ends.

    Returns:
      The chief's exit code, or 138 if it disappeared without one.

    Raises:
      ClusterIncompleteError: the chief did not appear in time.
    """
    dismissal = pathlib.Path(ending.format(task=cluster.task))
    dismissal.unlink(missing_ok=True)
    server = tf.distribute.Server(
        cluster_spec(cluster),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=server_threads(),
    )
    del server  # It serves until the process ends.
    chief = cluster.addresses["chief"][0]
    wait_for_tasks({"chief-0": chief}, startup_timeout_seconds)
    seen = time.monotonic()
    while time.monotonic() - seen < _SECONDS_UNTIL_LOST:
        if dismissal.exists():
            return _wait_until_gone(chief, _exit_code(dismissal))
        if is_listening(chief):
            seen = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return LOST_PEER


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


def _exit_code(dismissal: pathlib.Path) -> int:
    text = dismissal.read_text(encoding="utf-8")
    dismissal.unlink()
    return int(text)
