"""Comparison of what the tasks that train together have, and one refusal on all."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError


def other_messages(
    own: Mapping[str, Any], cluster: Cluster, strategy: Strategy
) -> Iterator[tuple[str, Any, Any]]:
    """Yields each task with another message: its name, its message and this task's.

    All tasks that train together have to call this function.

    Args:
      own: Message of this task, as JSON values by name.
      cluster: Tasks of the run, and which of them this one is.
      strategy: Strategy that sends the messages.
    """
    message = json.dumps(own).encode()
    names = {address: task for task, address in cluster.tasks().items()}
    of_all = strategy.messages_of_all(message)
    for address, other in zip(cluster.computing, of_all, strict=True):
        if other != message:
            yield names[address], json.loads(other), json.loads(message)


def refuse_together(problem: str, strategy: Strategy) -> NoReturn:
    """Ends this task with a line, after all tasks have read each other's messages.

    Raises:
      UsageError: Always, on each task that calls this function.
    """
    # Another task may still read this one's message.
    strategy.wait_until_all_are_done()
    strategy.close()
    raise UsageError(problem)
