"""Tells that another task of the cluster was lost, and which one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from strategies.cluster import Cluster
from strategies.rendezvous import REMEDY, PeerLostError, is_listening
from strategies.settings import UsageError

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
