"""Detection of dead, unresponsive and suspended tasks.

The coordinator of parameter servers runs the steps of a dead worker elsewhere and logs
hundreds of lines a second about it. With no worker left, or with a suspended worker,
the coordinator waits for ever (TensorFlow 2.21). This module reports a dead worker in
one line, and raises an error if too few workers are left.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import tensorflow as tf

from strategies.cluster.peer_silence import PeerStates
from strategies.cluster.probes import (
    REMEDY,
    PeerState,
    accepts,
    for_each,
    is_serving,
    peer_state,
)
from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError, UsageError

# TensorFlow 2.21 raises the first two for a dead process, the third for a silent one.
_SIGNS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)
# TensorFlow raises these for work that was under way. They have other causes too, and
# count only if a task is missing.
_CONSEQUENCES = (tf.errors.CancelledError, tf.errors.InternalError)
# All of them, and the error about a task that was started again in the meantime, at the
# same address (tensorflow/core/distributed_runtime/eager/eager_service_impl.cc,
# `GetServerContext`). Disk errors have other classes.
PEER_ERRORS = (*_SIGNS, *_CONSEQUENCES, tf.errors.InvalidArgumentError)
# A part of that error's message. One task was started again; another may be dead.
_RESTARTED = "restarted"
# tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc, `GrpcServer::Init`.
_NO_SERVER = "Could not start gRPC server"
# Two tasks that do not reach each other cannot know which of them is cut off.
CUT_OFF = "reaches no other task: its network is cut off"
_MOST_NAMED = 4
_SECONDS_TO_DIE = 0.3
_POLL_SECONDS = 1.0


@contextlib.contextmanager
def translate_peer_errors(cluster: Cluster) -> Iterator[None]:
    """Replaces TensorFlow's errors about another task by one error that names the task.

    Raises:
      PeerLostError: Another task is dead or does not answer.
      UsageError: This task cannot use its own port.
    """
    try:
        yield
    except tf.errors.UnknownError as error:
        if _NO_SERVER not in str(error):
            raise
        # The port was free at the task's own address: `rendezvous.hold_port` used it.
        raise UsageError(
            f"the address {cluster.address} of {cluster.task} cannot be used ("
            "TensorFlow listens at all addresses of a machine, and its port is in "
            "use at another one): give each task a free port of its own machine."
        ) from error
    except Exception as error:
        # The coordinator of parameter servers wraps some errors.
        cause = getattr(error, "original_exception", error)
        is_restart = isinstance(cause, tf.errors.InvalidArgumentError) and (
            _RESTARTED in str(cause)
        )
        if not (isinstance(cause, (*_SIGNS, *_CONSEQUENCES)) or is_restart):
            raise
        lost = None
        # A shortage of this process, as of file descriptors, says nothing of others.
        with contextlib.suppress(OSError, RuntimeError):
            lost = _lost_peer(cluster, cause)
        if lost is None:
            raise
        raise lost from error


def _lost_peer(cluster: Cluster, error: tf.errors.OpError) -> PeerLostError | None:
    peers = cluster.peers()
    if not peers:
        return None
    gone = _not_answering(peers, accepts)
    if not gone and isinstance(error, tf.errors.UnavailableError):
        # A killed process loses its connections one after the other, and its listening
        # port may be the last.
        time.sleep(_SECONDS_TO_DIE)
        gone = _not_answering(peers, accepts)
    is_unreachable = set(for_each(gone, peer_state).values()) == {PeerState.SILENT}
    if is_unreachable and len(gone) == len(peers) > 1:
        return PeerLostError(f"{cluster.task} at {cluster.address} {CUT_OFF}; {REMEDY}")
    if gone:
        what = "does not answer" if is_unreachable else "was lost"
        return PeerLostError(f"{_named(gone)} {what}: {REMEDY}")
    if not isinstance(error, _SIGNS):
        return None
    # All peers accept connections, but the kernel also does so for a stopped process.
    # A peer that has been continued in the meantime cannot be distinguished.
    silent_peers = _not_answering(peers, is_serving)
    one_of = "one of " if len(peers) > 1 and not silent_peers else ""
    silent = f"{one_of}{_named(silent_peers or peers)} does not answer"
    return PeerLostError(f"{silent} ({type(error).__name__}): {REMEDY}")


def _not_answering(
    peers: Mapping[str, str], answers: Callable[[str], bool]
) -> Mapping[str, str]:
    """Returns the tasks at whose address a function returns False."""
    found = for_each(peers, answers)
    return {task: address for task, address in peers.items() if not found[task]}


def _named(tasks: Mapping[str, str]) -> str:
    names = [f"{task} at {address}" for task, address in tasks.items()]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@contextlib.contextmanager
def monitor_workers(
    cluster: Cluster,
    num_required: int,
    warn: Callable[[str], None],
    patience_seconds: float,
    return_seconds: float,
) -> Iterator[None]:
    """Warns of workers that go missing or return while the main thread runs the block.

    Args:
      cluster: Cluster of the workers.
      num_required: Number of workers without which no step is possible.
      warn: Function that receives each warning, a sentence, in another thread.
      patience_seconds: Time that a task may be silent.
      return_seconds: Time that there may be fewer workers than required.

    Raises:
      PeerLostError: Fewer workers were left for that long, or a server was dead or
        unresponsive.
    """
    lost: list[PeerLostError] = []
    ended = threading.Event()
    previous = signal.getsignal(signal.SIGUSR1)

    def raise_in_main_thread(number: int, frame: FrameType | None) -> None:
        if lost:
            raise lost[0]
        # Somebody else has sent the signal, such as a scheduler before it ends a job.
        if callable(previous):
            previous(number, frame)
        elif previous is signal.SIG_DFL:
            signal.signal(number, previous)
            signal.raise_signal(number)

    states = PeerStates(cluster.tasks("worker", "ps"), patience_seconds)

    def watch() -> None:
        error = _until_too_few_are_left(
            cluster, states, num_required, warn, return_seconds, ended
        )
        if error is None:
            return
        lost.append(error)
        # The main thread waits for a result that never arrives. During such a wait
        # Python still runs signal handlers, and only in the main thread.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        # At the end the run asks for values of the missing tasks, on new connections,
        # and gRPC waits 20 s for each answer. `probe` disconnects them again.
        while not ended.wait(_POLL_SECONDS):
            states.probe()

    signal.signal(signal.SIGUSR1, raise_in_main_thread)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def _until_too_few_are_left(
    cluster: Cluster,
    states: PeerStates,
    num_required: int,
    warn: Callable[[str], None],
    return_seconds: float,
    ended: threading.Event,
) -> PeerLostError | None:
    """Returns an error once too few tasks are left; None once the block has ended."""
    workers, servers = cluster.tasks("worker"), cluster.tasks("ps")
    gone: set[str] = set()
    enough_at = time.monotonic()
    while not ended.wait(_POLL_SECONDS):
        missing = states.probe()
        there = workers.keys() - missing.keys()
        enough = len(there) >= num_required
        others = "; the others go on" if enough else ""
        for task in sorted(workers.keys() - there - gone):
            warn(f"{task} at {workers[task]} {missing[task]}{others}.")
        for task in sorted(gone & there):
            warn(f"{task} at {workers[task]} is back.")
        gone = workers.keys() - there
        # Without one of the servers the weights are incomplete: training cannot go on.
        for task in sorted(servers.keys() & missing.keys()):
            return PeerLostError(f"{task} at {servers[task]} {missing[task]}: {REMEDY}")
        if enough:
            enough_at = time.monotonic()
        elif time.monotonic() - enough_at > return_seconds:
            names = ", ".join(f"{task} at {workers[task]}" for task in sorted(gone))
            needed = f"{len(there)} of {num_required} workers needed are left"
            return PeerLostError(f"{needed}, {names} lost: {REMEDY}")
    return None
