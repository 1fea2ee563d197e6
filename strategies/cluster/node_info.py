"""Every task tells every other what it runs on, before anything is started.

The same command runs on every task. Each answers at its own address with one line of
JSON and asks the others for theirs, so that a firewall that is closed in one direction
shows as well. What comes from another process is data of at most 64 KiB, read within
seconds. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from strategies.cluster.rendezvous import answering
from strategies.cluster.spec import Cluster

_MOST_BYTES = 1 << 16
_SECONDS_A_MESSAGE = 2.0
_SECONDS_BETWEEN_ROUNDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What another task said.

    Attributes:
      card: what it runs on; None if it did not say.
      silence: why there is no card, in a few words.
    """

    card: Mapping[str, Any] | None = None
    silence: str = ""


def exchange(
    cluster: Cluster, card: Mapping[str, Any], seconds: float
) -> dict[str, Answer]:
    """Gives this task's card to all others and takes theirs.

    Args:
      cluster: who they are.
      card: what to tell; an object of JSON.
      seconds: how long to wait for all of them together.

    Returns:
      The answer of every other task by its name.

    Raises:
      UsageError: this task's address is taken.
    """
    missing = {t: a for t, a in cluster.tasks().items() if t != cluster.task}
    answers = {task: Answer() for task in missing}
    deadline = time.monotonic() + seconds
    with answering(cluster) as listener:
        desk = _Desk(listener, {**card, "task": cluster.task}, set(missing))
        try:
            while (missing or not desk.has_told_all()) and time.monotonic() < deadline:
                for task, address in list(missing.items()):
                    answers[task] = _ask(cluster.task, task, address)
                    if answers[task].card is not None:
                        del missing[task]
                time.sleep(_SECONDS_BETWEEN_ROUNDS)
        finally:
            desk.close()
    return answers


def _ask(own_name: str, task: str, address: str) -> Answer:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), _SECONDS_A_MESSAGE
        ) as connection:
            _send(connection, {"task": own_name})
            said = _receive(connection)
    except socket.gaierror:
        return Answer(silence=f"the host name {host} is not known here")
    except TimeoutError:
        return Answer(silence="no answer: a firewall, or a host that is down")
    except ConnectionRefusedError:
        return Answer(silence="nothing listens there")
    except (ValueError, ConnectionResetError, BrokenPipeError):
        return Answer(silence="something else uses that port")
    except OSError as error:
        return Answer(silence=(error.strerror or str(error)).lower())
    if said.get("task") != task:
        return Answer(silence="another task or program answers there")
    return Answer(card=said)


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One line that is an object of JSON.

    Raises:
      ValueError: it is something else, or too long.
      OSError: it does not come in time.
    """
    deadline = time.monotonic() + _SECONDS_A_MESSAGE
    received = b""
    while not received.endswith(b"\n"):
        # Every part has less time left, so that a drop at a time does not last long.
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(4096)
        received += part
        if not part or len(received) > _MOST_BYTES:
            raise ValueError("not a line of JSON")
    try:
        message = json.loads(received)
    except RecursionError as error:
        raise ValueError("not an object of JSON") from error
    if not isinstance(message, dict):
        raise ValueError("not an object of JSON")
    return message


class _Desk:
    """Hands this task's card to whoever asks, in a thread of its own."""

    def __init__(
        self, listener: socket.socket, card: Mapping[str, Any], others: set[str]
    ):
        self._listener = listener
        self._card = card
        self._not_told = others
        self._is_closing = False
        listener.settimeout(_SECONDS_BETWEEN_ROUNDS)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def has_told_all(self) -> bool:
        return not self._not_told

    def close(self) -> None:
        self._is_closing = True
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_closing:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                self._tell(connection)

    def _tell(self, connection: socket.socket) -> None:
        """Whoever asks properly is told; the others are a port scan or a mistake."""
        try:
            asked = _receive(connection)
            _send(connection, self._card)
        except (OSError, ValueError):
            return
        self._not_told.discard(str(asked.get("task")))
