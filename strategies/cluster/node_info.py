"""Exchange of node information between all tasks before start-up.

The same command runs on every task. Each task answers at its own address with one line
of JSON and asks the other tasks for theirs, so that a firewall that is closed in one
direction shows as well. A task reads at most 64 KiB from another process, within
seconds. This module does not import TensorFlow.
"""

import contextlib
import dataclasses
import functools
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from strategies.cluster.probes import ask_each, host_and_port
from strategies.cluster.rendezvous import accepting, hold_port
from strategies.cluster.spec import Cluster
from strategies.common.strict_json import parse_json

_MOST_BYTES = 1 << 16
# Connecting may take as long again.
_SECONDS_A_MESSAGE = 2.0
_SECONDS_BETWEEN_ROUNDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of another task.

    Attributes:
      node_info: Node information of the task; None without an answer.
      problem: Reason for the missing answer, in a few words.
    """

    node_info: Mapping[str, Any] | None = None
    problem: str = ""


def exchange(
    cluster: Cluster, node_info: Mapping[str, Any], seconds: float
) -> dict[str, Answer]:
    """Sends this task's node information to all others, and returns theirs by task.

    Args:
      cluster: Cluster of all tasks.
      node_info: Node information of this task, a JSON object.
      seconds: Longest wait for all other tasks together, in seconds.

    Raises:
      UsageError: Another process uses this task's address.
    """
    # Everybody is asked, the evaluator too.
    missing = {t: a for t, a in cluster.tasks().items() if t != cluster.task}
    answers = {task: Answer() for task in missing}
    deadline = time.monotonic() + seconds
    own, unserved = {**node_info, "task": cluster.task}, set(missing)

    def serve(connection: socket.socket) -> None:
        # A port scan, or a mistake, is ignored.
        with contextlib.suppress(OSError, ValueError):
            asked = _receive(connection)
            _send(connection, own)
            unserved.discard(str(asked.get("task")))

    with hold_port(cluster) as listener, accepting(listener, serve):
        # A task that has all answers still serves the tasks that have none yet.
        while (missing or unserved) and time.monotonic() < deadline:
            answers |= ask_each(missing, functools.partial(_ask, cluster.task))
            missing = {t: a for t, a in missing.items() if not answers[t].node_info}
            time.sleep(_SECONDS_BETWEEN_ROUNDS)
    return answers


def _ask(own_name: str, task: str, address: str) -> Answer:
    """Returns the answer of a task."""
    place = host_and_port(address)
    try:
        with socket.create_connection(place, _SECONDS_A_MESSAGE) as connection:
            _send(connection, {"task": own_name})
            received = _receive(connection)
    except socket.gaierror:
        return Answer(problem=f"the host name {place[0]} is not known here")
    except TimeoutError:
        return Answer(problem="no answer: a firewall, or a host that is down")
    except ConnectionRefusedError:
        return Answer(problem="nothing listens there")
    except (ValueError, ConnectionResetError, BrokenPipeError):
        return Answer(problem="something else uses that port")
    except OSError as error:
        return Answer(problem=(error.strerror or str(error)).lower())
    # Two entries of the cluster may lead to the same process, or to another cluster.
    if received.get("task") != task:
        return Answer(problem="another task or program answers there")
    return Answer(node_info=received)


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Returns one received line, a JSON object.

    Raises:
      ValueError: The line is something else, or too long.
      OSError: The line does not arrive in time.
    """
    deadline = time.monotonic() + _SECONDS_A_MESSAGE
    received = b""
    while not received.endswith(b"\n"):
        # The limit is for the whole line: a peer that sends it byte by byte gains no
        # time.
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(4096)
        received += part
        if not part or len(received) > _MOST_BYTES:
            raise ValueError("not a line of JSON")
    message = parse_json(received.decode())
    if not isinstance(message, dict):
        raise ValueError("not an object of JSON")
    return message
