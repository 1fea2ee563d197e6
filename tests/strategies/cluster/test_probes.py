"""Tests of what a failed connection says about a task."""

import errno
import socket

import pytest

from strategies.cluster.probes import PeerState, peer_state


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), PeerState.DEAD),
        (OSError(errno.EHOSTUNREACH, "no route"), PeerState.SILENT),
        # A scheduler removes the name of a task that has ended.
        (socket.gaierror(socket.EAI_NONAME, "unknown name"), PeerState.DEAD),
        # A name server that does not answer knows nothing of the task.
        (socket.gaierror(socket.EAI_AGAIN, "temporary failure"), PeerState.SILENT),
        (TimeoutError("timed out"), PeerState.SILENT),
        # A shortage here says nothing of the task.
        (OSError(errno.EMFILE, "too many open files"), PeerState.SILENT),
        (OSError(errno.EADDRNOTAVAIL, "no free port"), PeerState.SILENT),
    ],
)
def test_only_an_answer_shows_that_a_task_is_gone(
    error: OSError, state: PeerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: object, seconds: float) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert peer_state("worker-0.example:2222") is state
