"""Errors that are about another task, and others."""

import contextlib
import errno
import os
import resource
import signal
import socket

import pytest
import tensorflow as tf

from strategies.cluster.failure_detection import translate_peer_errors
from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from tests import processes
from tests.strategies.cluster import raises_signal


def test_a_task_without_others_blames_none_of_them() -> None:
    """Such as an input that reads a bucket, which raises the same class."""
    cluster = Cluster(job="worker", addresses={"worker": ("127.0.0.1:1",)})
    with (
        pytest.raises(tf.errors.UnavailableError, match="the bucket"),
        translate_peer_errors(cluster),
    ):
        raise tf.errors.UnavailableError(None, None, "the bucket does not answer")


def test_a_shortage_of_this_process_blames_no_other_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error that TensorFlow raises for it stays."""

    def fail(address: object, seconds: float) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "create_connection", fail)
    addresses = {"worker": ("127.0.0.1:1", "127.0.0.1:2")}
    with (
        pytest.raises(tf.errors.UnavailableError, match="too many"),
        translate_peer_errors(Cluster(job="worker", addresses=addresses)),
    ):
        raise tf.errors.UnavailableError(None, None, "too many open files")


def test_names_that_a_process_cannot_resolve_are_not_lost_tasks() -> None:
    """A process without descriptors gets an error of another kind by `getaddrinfo`."""
    addresses = {"worker": ("localhost:1", "localhost:2")}
    with contextlib.ExitStack() as stack:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with open(os.devnull) as file:
            lowest = file.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        stack.enter_context(pytest.raises(tf.errors.UnavailableError))
        stack.enter_context(
            translate_peer_errors(Cluster(job="worker", addresses=addresses))
        )
        raise tf.errors.UnavailableError(None, None, "too many open files")


def test_a_worker_that_was_started_again_beside_a_dead_server_is_no_bug() -> None:
    """Both were killed at once, and the launcher has replaced the worker already."""
    words = (
        "Resource input tensor contains an invalid device. This might happen when the "
        "client has connected to a different cluster, or some remote workers have "
        "been restarted."
    )
    addresses = {"chief": ("127.0.0.1:1",), "ps": ("127.0.0.1:2",)}
    cluster = Cluster(job="chief", addresses=addresses)
    with (
        pytest.raises(PeerLostError, match=r"ps-0 at 127\.0\.0\.1:2 was lost"),
        translate_peer_errors(cluster),
    ):
        raise tf.errors.InvalidArgumentError(None, None, words)
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="a label"),
        translate_peer_errors(cluster),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "a label value of 5")


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_scheduler_may_send_the_signal_of_a_loss(is_taken: bool) -> None:
    """Such as Slurm by `--signal=USR1@60`, which may be handled by the program."""
    done = processes.run_module(raises_signal.__name__, str(is_taken))
    expected = (0, "taken\n" * 2) if is_taken else (-signal.SIGUSR1, "")
    assert (done.returncode, done.stdout) == expected, done.stderr
