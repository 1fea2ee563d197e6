"""Keeps an eye on workers whose work others can take over.

The coordinator of parameter servers runs the steps of a lost worker elsewhere and
logs hundreds of lines a second about it, and with no worker left it waits for ever
(TensorFlow 2.21). Here the loss is one line, and the loss of too many is an error.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from strategies.cluster import Cluster
from strategies.rendezvous import REMEDY, PeerLostError, is_listening

_POLL_SECONDS = 1.0


@contextlib.contextmanager
def workers_attended(
    cluster: Cluster,
    num_required: int,
    warn: Callable[[str], None],
    patience_seconds: float,
) -> Iterator[None]:
    """Warns of workers that come and go, in the main thread's block.

    Args:
      cluster: whose workers.
      num_required: how many of them steps cannot do without.
      warn: told of each in a sentence, from another thread.
      patience_seconds: how long there may be fewer.

    Raises:
      PeerLostError: there were fewer for that long.
    """
    lost: list[PeerLostError] = []
    ended = threading.Event()

    def raise_in_main_thread(number: int, frame: FrameType | None) -> None:
        raise lost[0]

    def attend() -> None:
        error = _until_too_few_are_left(
            cluster, num_required, warn, patience_seconds, ended
        )
        if error is not None:
            lost.append(error)
            # The main thread waits for a result that will not come. A handler of a
            # signal is what Python runs in the middle of that.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

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
    num_required: int,
    warn: Callable[[str], None],
    patience_seconds: float,
    ended: threading.Event,
) -> PeerLostError | None:
    workers = _workers(cluster)
    gone: set[str] = set()
    enough_at = time.monotonic()
    while not ended.wait(_POLL_SECONDS):
        there = {task for task, address in workers.items() if is_listening(address)}
        enough = len(there) >= num_required
        others = "; the others go on" if enough else ""
        for task in sorted(workers.keys() - there - gone):
            warn(f"{task} at {workers[task]} was lost{others}.")
        for task in sorted(gone & there):
            warn(f"{task} at {workers[task]} is back.")
        gone = workers.keys() - there
        if enough:
            enough_at = time.monotonic()
        elif time.monotonic() - enough_at > patience_seconds:
            names = ", ".join(f"{task} at {workers[task]}" for task in sorted(gone))
            needed = f"{len(there)} of {num_required} workers needed are left"
            return PeerLostError(f"{needed}, {names} lost: {REMEDY}")
    return None


def _workers(cluster: Cluster) -> Mapping[str, str]:
    tasks = cluster.members().items()
    return {task: address for task, address in tasks if task.startswith("worker-")}
