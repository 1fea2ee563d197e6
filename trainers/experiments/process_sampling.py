"""Memory, traffic and processor time of running processes, seen from outside."""

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
from collections.abc import Sequence

import psutil

from strategies.processes.process_title import LAUNCHER, TEMPLATE


@dataclasses.dataclass(slots=True)
class Samples:
    """Samples of running processes.

    Attributes:
      templates: Templates of the processes.
      peak_memory_bytes: Peak memory of all processes together, in bytes.
      sent_bytes: Bytes sent in network namespaces other than that of this process, by
        namespace.
    """

    templates: Sequence[psutil.Process] = ()
    peak_memory_bytes: int = 0
    sent_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def sample(self, processes: Sequence[psutil.Process]) -> None:
        self.peak_memory_bytes = max(
            self.peak_memory_bytes, _memory_bytes(processes, self.templates)
        )
        self.sent_bytes.update(_sent_elsewhere(processes))

    def sent_over_loopback(self, since: int | None) -> int | None:
        """Returns the bytes sent over loopback in private networks, or in this one.

        If the processes had no private network, the count is that of this network,
        whose interface had sent `since` bytes at the start.
        """
        if self.sent_bytes:
            return sum(self.sent_bytes.values())
        now = loopback_bytes()
        return None if now is None or since is None else now - since


def _memory_bytes(
    processes: Sequence[psutil.Process], templates: Sequence[psutil.Process]
) -> int:
    """Returns the memory of processes in bytes, with shared pages counted once.

    The private memory of all processes is added up; of their shared pages, nearly all
    TensorFlow's own code, the largest number is added. Reading the exact share of each
    page (PSS) takes 13 ms for a process that has loaded TensorFlow, and holds that
    process up; this takes 0.02 ms.

    The number is as if all processes had been started as new programs. Memory that a
    forked process has in common with its template counts as its own. Of templates and
    launchers only the shared pages count.
    """
    private = shared = 0
    for each in (*processes, *templates):
        with contextlib.suppress(psutil.Error):
            memory = each.memory_info()
            # Not every operating system reports shared pages.
            shared_here = getattr(memory, "shared", 0)
            shared = max(shared, shared_here)
            if each.name() not in (TEMPLATE, LAUNCHER):
                private += memory.rss - shared_here
    return private + shared


def _sent_elsewhere(processes: Sequence[psutil.Process]) -> dict[str, int]:
    """Returns bytes sent in other network namespaces, by namespace.

    A new namespace counts from zero (man 7 network_namespaces, man 5 proc_pid_net).
    """
    sent: dict[str, int] = {}
    with contextlib.suppress(OSError):
        here = os.readlink("/proc/self/ns/net")
        for each in processes:
            # The process may have ended since the list was made.
            with contextlib.suppress(OSError):
                namespace = os.readlink(f"/proc/{each.pid}/ns/net")
                if namespace not in (here, *sent):
                    counters = pathlib.Path(f"/proc/{each.pid}/net/dev").read_text()
                    # Beside loopback, that of an emulated network.
                    counts = re.findall(r"^ *\w+:(.*)$", counters, re.MULTILINE)
                    # The first eight columns count received traffic; the ninth is bytes
                    # sent.
                    sent[namespace] = sum(int(each.split()[8]) for each in counts)
    return sent


def loopback_bytes() -> int | None:
    """Returns the bytes sent over loopback in this network; None if not counted."""
    interface = psutil.net_io_counters(pernic=True).get("lo")
    return None if interface is None else interface.bytes_sent


def others_cpu_seconds() -> float:
    """Returns processor seconds used by neither this process nor its children."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    # The time of guests is part of the time of users already.
    busy -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    own = sum(sum(resource.getrusage(who)[:2]) for who in _OWN)
    return busy - own


_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
