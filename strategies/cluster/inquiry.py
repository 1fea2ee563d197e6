"""Questions of stalled tasks to each other, and the answers.

The main thread of a stalled task waits in TensorFlow. So every task has a thread that
answers at the UDP port with the number of its TCP port; a firewall may close it. As
little is trusted as in `node_info`, and no answer is longer than its question, so that
nobody can direct answers at another machine. This module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from strategies.cluster.activity import Sign, observe_activity
from strategies.cluster.probes import PeerState, ask_each, host_and_port, peer_state
from strategies.cluster.rendezvous import bound_socket
from strategies.cluster.spec import Cluster
from strategies.common.strict_json import parse_json
from strategies.common.text import shown

_BYTES, _MOST_CHARACTERS = 1200, 80
_ATTEMPTS, _SECONDS_PER_ATTEMPT = 3, 1.0
# All tasks of a stalled cluster ask at about the same time.
_SECONDS_OF_AN_OBSERVATION = 1.0
# What may happen to a message, and to one with another content.
_FAILURES = (OSError, ValueError, TypeError, LookupError, ArithmeticError)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """State of a task.

    Attributes:
      step: Number of applied updates that the task knows of.
      doing: Kind of work; empty for a task that serves others.
      idle_seconds: Time without progress.
      sign: Sign of work in its threads.
      where: Function or file with that sign; may be empty.
    """

    step: int = 0
    doing: str = ""
    idle_seconds: float = 0.0
    sign: Sign = Sign.NONE
    where: str = ""

    def observed(self) -> Report:
        """Returns the report with the present work of this process."""
        sign, where = observe_activity()
        # The end of a path says more than its start.
        return dataclasses.replace(self, sign=sign, where=where[-_MOST_CHARACTERS:])


def answer_questions(
    cluster: Cluster,
    report: Callable[[], Report] = Report,
    on_question: Callable[[], None] = lambda: None,
) -> None:
    """Starts a thread that answers other tasks, unless the UDP port is in use.

    Args:
      cluster: Cluster with the task of this process.
      report: Function that returns the state of this task, without its signs of work.
      on_question: Function called after each answer.
    """

    def serve(bound: socket.socket) -> None:
        observed_at, observed = 0.0, Report()
        while True:
            # Anybody may send anything.
            with contextlib.suppress(*_FAILURES):
                message, sender = bound.recvfrom(_BYTES + 1)
                question = parse_json(message.decode())
                if len(message) != _BYTES or question["to"] != cluster.task:
                    continue
                if time.monotonic() - observed_at > _SECONDS_OF_AN_OBSERVATION:
                    observed_at, observed = time.monotonic(), report().observed()
                answer = dataclasses.asdict(observed)
                answer |= {"sign": observed.sign.name, "to": shown(question["number"])}
                bound.sendto(json.dumps(answer).encode()[:_BYTES], sender)
                on_question()

    with contextlib.suppress(OSError):
        bound = bound_socket(cluster.address, socket.SOCK_DGRAM)
        threading.Thread(target=serve, args=(bound,), daemon=True).start()


def ask_peers(cluster: Cluster) -> dict[str, Report | PeerState]:
    """Returns the report of each peer, or without one the state of its TCP port."""
    return ask_each(cluster.peers(), _ask)


def _ask(task: str, address: str) -> Report | PeerState:
    """Returns the report of a task, or the state of its port."""
    state = peer_state(address)
    # Only who has read the question knows its number.
    number = secrets.token_hex(8)
    question = json.dumps({"to": task, "number": number}).encode().ljust(_BYTES)
    # A suspended task, or one whose machine is off, need not be asked.
    attempts = _ATTEMPTS if state is PeerState.SERVING else 0
    for _ in range(attempts):
        with contextlib.suppress(*_FAILURES):
            asking, place = _socket_for(address)
            with asking:
                asking.settimeout(_SECONDS_PER_ATTEMPT)
                asking.sendto(question, place)
                answer = parse_json(asking.recv(_BYTES).decode())
            if answer["to"] == number:
                return Report(
                    step=int(answer["step"]),
                    doing=shown(str(answer["doing"])),
                    idle_seconds=float(answer["idle_seconds"]),
                    sign=Sign[answer["sign"]],
                    where=shown(str(answer["where"])),
                )
    return state


def _socket_for(address: str) -> tuple[socket.socket, tuple[Any, ...]]:
    """Returns a UDP socket for messages to host:port, and their address."""
    found = socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_DGRAM)
    family, kind, *_, place = found[0]
    return socket.socket(family, kind), place
