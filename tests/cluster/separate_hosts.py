"""Hosts of a network of the test's own, each a network namespace with an address.

A bridge in a namespace is the switch, and a pair of virtual interfaces the cable from
each host to it (man 4 veth). Processes hold the namespaces; with them all is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

TOOLS = ("unshare", "nsenter", "ip")
# As an ordinary user in a user namespace, in which networks may be made.
_WAYS = (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net"))


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts whose cables can be pulled.

    Attributes:
      switch: the process that holds the namespace of the bridge.
      holders: those of the hosts.
      enters_user: whether they are in a user namespace.
    """

    switch: subprocess.Popen[bytes]
    holders: Sequence[subprocess.Popen[bytes]]
    enters_user: bool

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def before(self, host: int) -> list[str]:
        """What goes before a command that is to run on a host."""
        return _enter(self.holders[host], self.enters_user)

    def cut_off(self, host: int) -> None:
        """The others hear nothing any more, and the host sees that its cable is out."""
        self._set_port(host, "down")

    def connect(self, host: int) -> None:
        """Puts the cable back."""
        self._set_port(host, "up")

    def processes(self, host: int) -> list[int]:
        """Ids of the processes that are on a host, but for the one that holds it."""
        holder = self.holders[host].pid
        network = os.readlink(f"/proc/{holder}/ns/net")
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
            # Some end meanwhile.
            with contextlib.suppress(OSError):
                if os.readlink(path) == network:
                    found.append(int(path.parts[2]))
        return sorted(set(found) - {holder})

    def _set_port(self, host: int, state: str) -> None:
        _ip(self.switch, self.enters_user, f"link set port{host} {state}")


@functools.cache
def reason_for_none() -> str:
    """Why this machine allows no such hosts; nothing if it does."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with separate_hosts(1):
            return ""
    except OSError as error:
        return f"no network of the test's own here: {error}"


@contextlib.contextmanager
def separate_hosts(number: int) -> Iterator[Hosts]:
    """Hosts with the addresses 10.77.0.1 and up, all connected.

    Raises:
      OSError: the kernel allows no network namespaces, or no such interfaces.
    """
    with contextlib.ExitStack() as held:
        way = next((way for way in _WAYS if _works(way)), None)
        if way is None:
            raise OSError("the kernel allows no network namespace")
        enters_user = "--user" in way
        switch = held.enter_context(_holder(way))
        make = [*_enter(switch, enters_user), "unshare", "--net"]
        holders = [held.enter_context(_holder(make)) for _ in range(number)]
        hosts = Hosts(switch, holders, enters_user)
        _ip(switch, enters_user, "link add bridge type bridge", "link set bridge up")
        for host, holder in enumerate(holders):
            _connect_first_time(hosts, host, holder)
        yield hosts


def _connect_first_time(
    hosts: Hosts, host: int, holder: subprocess.Popen[bytes]
) -> None:
    port = f"port{host}"
    cable = f"type veth peer name cable netns {holder.pid}"
    _ip(
        hosts.switch,
        hosts.enters_user,
        f"link add {port} {cable}",
        f"link set {port} master bridge up",
    )
    _ip(
        holder,
        hosts.enters_user,
        "link set lo up",
        f"address add {hosts.address(host)}/24 dev cable",
        "link set cable up",
    )


def _works(way: Sequence[str]) -> bool:
    return (
        subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0
    )


@contextlib.contextmanager
def _holder(way: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a namespace of its own, which ends with this one."""
    with subprocess.Popen(
        [*way, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # What comes back says that the namespace has been made.
        process.stdin.write(b"made\n")
        if process.stdout.readline() != b"made\n":
            raise OSError(f"{' '.join(way)} ends with {process.wait()}")
        yield process


def _enter(holder: subprocess.Popen[bytes], enters_user: bool) -> list[str]:
    user = ["--user", "--preserve-credentials"] if enters_user else []
    return ["nsenter", f"--target={holder.pid}", *user, "--net", "--"]


def _ip(holder: subprocess.Popen[bytes], enters_user: bool, *lines: str) -> None:
    """Raises OSError: the kernel or the program refuses one of the lines."""
    done = subprocess.run(
        [*_enter(holder, enters_user), "ip", "-batch", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"ip: {done.stderr.strip()}")
