"""Waits until every task of a cluster is there, and names those that are not.

TensorFlow's own start-up waits without limit and without a word: with one worker
missing, the leader of MultiWorkerMirroredStrategy hung for over 600 s and ignored
SIGTERM (TensorFlow 2.21). Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from strategies.cluster.spec import Cluster
from strategies.common.errors import ClusterIncompleteError, PeerLostError, UsageError

REMEDY = "start all tasks again, with --resume=auto to continue the run."
_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 1.0
# What a connection ends with if nothing comes back from the other machine: it is off,
# or a cable on the way is out. Whether its task still runs is not known then.
_UNHEARD = (
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
)


def is_listening(address: str) -> bool:
    """Whether something accepts connections at host:port."""
    try:
        with _connection_to(address):
            return True
    except OSError:
        return False


class Presence(enum.Enum):
    """What becomes of a connection to a task."""

    GONE = "its machine says that nobody accepts it"
    SILENT = "nothing is said"
    THERE = "a server begins to talk"


def presence(address: str) -> Presence:
    """Whether a gRPC server at host:port does anything.

    That of a stopped process still accepts connections, because its system does. One
    that runs begins with a SETTINGS frame, without being asked (RFC 9113, 3.4).
    """
    try:
        with _connection_to(address) as connection:
            return Presence.THERE if connection.recv(1) else Presence.SILENT
    except OSError as error:
        return Presence.SILENT if _is_silence(error) else Presence.GONE


def _is_silence(error: OSError) -> bool:
    return isinstance(error, TimeoutError) or error.errno in _UNHEARD


def _connection_to(address: str) -> socket.socket:
    """Raises OSError if there is none within a second."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS)


def is_answering(address: str) -> bool:
    """Whether the gRPC server at host:port says something, as a running one does."""
    return presence(address) is Presence.THERE


class Needed:
    """A task without which this one has nothing to do."""

    def __init__(
        self,
        task: str,
        address: str,
        patience_seconds: float,
        silence_seconds: float = 0.0,
    ):
        """Looks at nothing yet.

        Args:
          task: its name.
          address: its host:port.
          patience_seconds: how long it may be out of reach, as while one server at
            its address takes over from another.
          silence_seconds: how long nothing may come back from its machine, if that is
            longer.
        """
        self._task = task
        self._address = address
        self._patience_seconds = patience_seconds
        self._silence_seconds = max(patience_seconds, silence_seconds)
        self._missed_since: float | None = None

    def require(self) -> None:
        """Raises PeerLostError if it has been out of reach for too long."""
        patience, what = self._patience_seconds, "was lost"
        started = time.monotonic()
        try:
            with _connection_to(self._address):
                self._missed_since = None
                return
        except OSError as error:
            if _is_silence(error):
                patience, what = self._silence_seconds, "does not answer"
        self._missed_since = self._missed_since or started
        if time.monotonic() - self._missed_since > patience:
            raise PeerLostError(f"{self._task} at {self._address} {what}: {REMEDY}")


@contextlib.contextmanager
def answering(cluster: Cluster) -> Iterator[socket.socket]:
    """Accepts connections at this task's own address, until TensorFlow does.

    Raises:
      UsageError: another process has the address.
    """
    host, _, port = cluster.address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            _bind(listener, host.strip("[]"), int(port))
        except OSError as error:
            raise UsageError(
                f"the address {cluster.address} of {cluster.task} cannot be used "
                f"({error.strerror}): give each task a free port of its own machine."
            ) from error
        listener.listen(64)
        yield listener


def _check_own_address(cluster: Cluster) -> None:
    """Checks that no other task's host is another name of this task's.

    This task would answer in its place, and TensorFlow would wait for it without limit.
    """
    own = _sockets(cluster.address)
    for task, address in cluster.peers().items():
        same_port = address.rpartition(":")[2] == cluster.address.rpartition(":")[2]
        if same_port and own & _sockets(address):
            raise UsageError(
                f"the address {cluster.address} of {cluster.task} is {address} of "
                f"{task} by another name: give each task a host and port of its own."
            )


def _sockets(address: str) -> set[tuple[Any, ...]]:
    """Returns what a host:port leads to; nothing if its name is not known (yet)."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {place for *_, place in found}


def _bind(listener: socket.socket, host: str, port: int) -> None:
    """At the host's own address; behind a translated one, at every address."""
    try:
        listener.bind((host, port))
    except socket.gaierror:
        listener.bind(("", port))
    except OSError as error:
        if error.errno != 99:  # Cannot assign requested address.
            raise
        listener.bind(("", port))


def wait_for_tasks(
    tasks: Mapping[str, str],
    seconds: float,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Returns once every task has accepted a connection at some time.

    Args:
      tasks: host:port by name of the task.
      seconds: how long to wait for all of them together.
      stop_requested: whether to return before.

    Raises:
      ClusterIncompleteError: naming the tasks that were not there in time.
    """
    deadline = time.monotonic() + seconds
    missing = dict(tasks)
    while missing and not stop_requested():
        missing = {t: a for t, a in missing.items() if not is_listening(a)}
        if missing and time.monotonic() > deadline:
            names = ", ".join(f"{task} at {at}" for task, at in missing.items())
            raise ClusterIncompleteError(
                f"the cluster did not assemble within {seconds:g} s: {names} did not "
                "start; see that task's log, or raise --startup_timeout_seconds."
            )
        if missing:
            time.sleep(_POLL_SECONDS)


def meet(cluster: Cluster, seconds: float) -> None:
    """Returns once this task and all others have found each other.

    A task that has found all stops answering before TensorFlow answers in its place;
    others that still look for it try again until then.

    Raises:
      UsageError: this task's address is taken, or another task's as well.
      ClusterIncompleteError: a task did not come in time.
    """
    _check_own_address(cluster)
    with answering(cluster):
        wait_for_tasks(cluster.peers(), seconds)
