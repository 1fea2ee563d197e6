"""Detection of lost and suspended tasks.

The coordinator of parameter servers runs the steps of a lost worker elsewhere and logs
hundreds of lines a second about it; with no worker left, or with a suspended one, it
waits for ever (TensorFlow 2.21). Here the loss of a worker is one line, and the loss of
too many is an error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import psutil
import tensorflow as tf

from strategies.cluster.rendezvous import REMEDY, Presence, is_listening, presence
from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError, UsageError

# What TensorFlow 2.21 raises for a process that is gone (the first two) or silent.
_SIGNS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)
# What it raises besides, for work that was under way. These have other causes too, and
# count only if a task is missing.
_CONSEQUENCES = (tf.errors.CancelledError, tf.errors.InternalError)
# All of them, and what it raises for a task that was started again in the meantime, at
# the same address (tensorflow/core/distributed_runtime/eager/eager_service_impl.cc,
# `GetServerContext`). Disk errors have other classes.
LOSSES = (*_SIGNS, *_CONSEQUENCES, tf.errors.InvalidArgumentError)
# tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc, `GrpcServer::Init`.
_NO_SERVER = "Could not start gRPC server"
_MOST_NAMED = 4
_SECONDS_TO_DIE = 0.3


@contextlib.contextmanager
def lost_peers_named(cluster: Cluster) -> Iterator[None]:
    """Turns what TensorFlow raises when a task is lost into one error that names it.

    Raises:
      PeerLostError: in place of TensorFlow's error.
      UsageError: the same, where this task cannot have its port.
    """
    try:
        yield
    except tf.errors.UnknownError as error:
        if _NO_SERVER not in str(error):
            raise
        # It was free at the task's own address, where `rendezvous.answering` has been.
        raise UsageError(
            f"the address {cluster.address} of {cluster.task} cannot be used ("
            "TensorFlow listens at all addresses of a machine, and its port is in "
            "use at another one): give each task a free port of its own machine."
        ) from error
    except Exception as error:
        # The coordinator of parameter servers wraps some errors.
        cause = getattr(error, "original_exception", error)
        if not isinstance(cause, (*_SIGNS, *_CONSEQUENCES)):
            raise
        lost = _lost_peer(cluster, cause)
        if lost is None:
            raise
        raise lost from error


def _lost_peer(cluster: Cluster, error: tf.errors.OpError) -> PeerLostError | None:
    peers = cluster.peers()
    gone = _gone(peers)
    if not gone and isinstance(error, tf.errors.UnavailableError):
        # A process that is killed loses its connections one after the other, and the
        # port that it listens at may be the last.
        time.sleep(_SECONDS_TO_DIE)
        gone = _gone(peers)
    if gone:
        return PeerLostError(f"{_named(gone)} was lost: {REMEDY}")
    if not isinstance(error, _SIGNS):
        return None
    # A stopped process still accepts connections: its system does.
    one_of = "one of " if len(peers) > 1 else ""
    silent = f"{one_of}{_named(peers)} does not answer ({type(error).__name__})"
    return PeerLostError(f"{silent}: {REMEDY}")


def _gone(peers: Mapping[str, str]) -> Mapping[str, str]:
    """Those that do not listen."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        there = list(pool.map(is_listening, peers.values()))
    return {
        task: address
        for (task, address), is_there in zip(peers.items(), there, strict=True)
        if not is_there
    }


def _named(tasks: Mapping[str, str]) -> str:
    names = [f"{task} at {address}" for task, address in tasks.items()]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


_POLL_SECONDS = 1.0


@contextlib.contextmanager
def workers_attended(
    cluster: Cluster,
    num_required: int,
    warn: Callable[[str], None],
    patience_seconds: float,
    return_seconds: float,
) -> Iterator[None]:
    """Warns of workers that come and go, while the main thread runs a block.

    Args:
      cluster: whose workers.
      num_required: how many of them steps cannot do without.
      warn: told of each in a sentence, from another thread.
      patience_seconds: Time that a task may be silent.
      return_seconds: Time that there may be fewer workers than required.

    Raises:
      PeerLostError: there were fewer for that long, or a server was silent.
    """
    lost: list[PeerLostError] = []
    ended = threading.Event()

    def raise_in_main_thread(number: int, frame: FrameType | None) -> None:
        raise lost[0]

    tasks = {**_tasks_of(cluster, "worker"), **_tasks_of(cluster, "ps")}
    attendance = _Attendance(tasks, patience_seconds)

    def attend() -> None:
        error = _until_too_few_are_left(
            cluster, attendance, num_required, warn, return_seconds, ended
        )
        if error is None:
            return
        lost.append(error)
        # The main thread waits for a result that will not come. A handler of a
        # signal is what Python runs in the middle of that.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        # The end of the run asks for what the lost tasks held, on new connections,
        # and gRPC waits 20 s for an answer to each.
        while not ended.wait(_POLL_SECONDS):
            attendance.missing()

    previous = signal.signal(signal.SIGUSR1, raise_in_main_thread)
    thread = threading.Thread(target=attend, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def _until_too_few_are_left(
    cluster: Cluster,
    attendance: _Attendance,
    num_required: int,
    warn: Callable[[str], None],
    return_seconds: float,
    ended: threading.Event,
) -> PeerLostError | None:
    workers, servers = (_tasks_of(cluster, job) for job in ("worker", "ps"))
    gone: set[str] = set()
    enough_at = time.monotonic()
    while not ended.wait(_POLL_SECONDS):
        missing = attendance.missing()
        there = workers.keys() - missing.keys()
        enough = len(there) >= num_required
        others = "; the others go on" if enough else ""
        for task in sorted(workers.keys() - there - gone):
            warn(f"{task} at {workers[task]} {missing[task]}{others}.")
        for task in sorted(gone & there):
            warn(f"{task} at {workers[task]} is back.")
        gone = workers.keys() - there
        for task in sorted(servers.keys() & missing.keys()):
            return PeerLostError(f"{task} at {servers[task]} {missing[task]}: {REMEDY}")
        if enough:
            enough_at = time.monotonic()
        elif time.monotonic() - enough_at > return_seconds:
            names = ", ".join(f"{task} at {workers[task]}" for task in sorted(gone))
            needed = f"{len(there)} of {num_required} workers needed are left"
            return PeerLostError(f"{needed}, {names} lost: {REMEDY}")
    return None


class _Attendance:
    """Who is missing, of some tasks."""

    def __init__(self, tasks: Mapping[str, str], patience_seconds: float):
        """Begins as if all of them had just been heard of.

        Args:
          tasks: host:port by name.
          patience_seconds: how long one of them may be silent.
        """
        self._tasks = tasks
        self._patience_seconds = patience_seconds
        self._heard_at = dict.fromkeys(tasks, time.monotonic())
        self._missing: dict[str, str] = {}

    def missing(self) -> Mapping[str, str]:
        """By the name of the task, what is wrong with it, to be put behind the name.

        One that is silent for too long is disconnected, however often it has to be.
        One that was missing is so until it talks: silence is no return.
        """
        # A machine that is off takes a second each.
        with ThreadPoolExecutor(max_workers=32) as pool:
            found = list(pool.map(presence, self._tasks.values()))
        now = time.monotonic()
        for (task, address), present in zip(self._tasks.items(), found, strict=True):
            if present is not Presence.SILENT:
                self._heard_at[task] = now
            if present is Presence.THERE:
                self._missing.pop(task, None)
            elif present is Presence.GONE:
                self._missing[task] = "was lost"
            elif now - self._heard_at[task] > self._patience_seconds:
                self._missing.setdefault(task, "does not answer")
                disconnect(address)
        return dict(self._missing)


def _tasks_of(cluster: Cluster, job: str) -> Mapping[str, str]:
    tasks = cluster.members().items()
    return {task: address for task, address in tasks if task.startswith(f"{job}-")}


def disconnect(address: str) -> None:
    """Ends this process's TCP connections to host:port.

    To TensorFlow it is as if the other process had ended: what waits for it fails at
    once. There is no limit for how long a closure may take, and none for a connection
    whose other side is silent (TensorFlow 2.21).
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port))
    except socket.gaierror:
        return  # Its name has gone as well, so that nothing can be told to be to it.
    hosts = {address[4][0] for address in found}
    for connection in psutil.Process().net_connections(kind="tcp"):
        remote = connection.raddr
        # gRPC writes addresses of version 4 as those of version 6.
        if remote and remote[1] == int(port) and remote[0].split("ffff:")[-1] in hosts:
            _end(connection.fd)


def _end(descriptor: int) -> None:
    """Ends a connection of which somebody else has the file descriptor."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.shutdown(socket.SHUT_RDWR)
