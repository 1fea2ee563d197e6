"""Hosts of a private network, each a network namespace with an address.

A bridge in a namespace is the switch, and a pair of virtual interfaces is the cable
from each host to it (man 4 veth). Processes hold the namespaces, which end with them.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from strategies.processes.network_isolation import Network

TOOLS = ("unshare", "nsenter", "ip")
# An ordinary user may make networks in a user namespace.
_WAYS = (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net"))


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts whose cables can be pulled.

    Attributes:
      switch: Process that holds the namespace of the bridge.
      holders: Processes that hold the namespaces of the hosts.
      networks: Network of each host, for the processes that run on it.
      enters_user: True if the hosts are in a user namespace.
    """

    switch: subprocess.Popen[bytes]
    holders: Sequence[subprocess.Popen[bytes]]
    networks: Sequence[Network]
    enters_user: bool

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def before(self, host: int) -> list[str]:
        """Returns the words that precede a command to run it on a host."""
        return _enter(self.holders[host], self.enters_user)

    def cut_off(self, host: int) -> None:
        """Pulls the cable of a host: the others hear nothing, and the host sees it."""
        self._set_port(host, "down")

    def connect(self, host: int) -> None:
        """Plugs the cable of a host in again."""
        self._set_port(host, "up")

    def processes(self, host: int) -> list[int]:
        """Returns the ids of the processes on a host, except its holder."""
        holder = self.holders[host].pid
        network = os.readlink(f"/proc/{holder}/ns/net")
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
            # A process may have ended meanwhile.
            with contextlib.suppress(OSError):
                if os.readlink(path) == network:
                    found.append(int(path.parts[2]))
        return sorted(set(found) - {holder})

    def _set_port(self, host: int, state: str) -> None:
        _ip(self.switch, self.enters_user, f"link set port{host} {state}")


@functools.cache
def reason_for_none() -> str:
    """Returns why this machine allows no such hosts, or an empty text."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with separate_hosts(1):
            return ""
    except OSError as error:
        return f"no private network on this machine: {error}"


@contextlib.contextmanager
def separate_hosts(number: int) -> Iterator[Hosts]:
    """Yields connected hosts with the addresses 10.77.0.1 and up.

    Raises:
      OSError: The kernel allows no network namespaces, or no such interfaces.
    """
    with contextlib.ExitStack() as held:
        way = next((way for way in _WAYS if _works(way)), None)
        if way is None:
            raise OSError("the kernel allows no network namespace")
        enters_user = "--user" in way
        switch = held.enter_context(_holder(way))
        make = [*_enter(switch, enters_user), "unshare", "--net"]
        holders = [held.enter_context(_holder(make)) for _ in range(number)]
        kinds = ("user", "net") if enters_user else ("net",)
        networks = [_network(holder, kinds, held) for holder in holders]
        hosts = Hosts(switch, holders, networks, enters_user)
        _ip(switch, enters_user, "link add bridge type bridge", "link set bridge up")
        for host, holder in enumerate(holders):
            _connect_first_time(hosts, host, holder)
        yield hosts


def _network(
    holder: subprocess.Popen[bytes],
    kinds: Sequence[str],
    opened: contextlib.ExitStack,
) -> Network:
    """Opens the namespaces of a host, in the order in which a process enters them."""
    descriptors = {}
    for kind in kinds:
        descriptors[kind] = os.open(f"/proc/{holder.pid}/ns/{kind}", os.O_RDONLY)
        opened.callback(os.close, descriptors[kind])
    return Network(descriptors)


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
    """Yields a process in a new namespace, which ends with the block."""
    with subprocess.Popen(
        [*way, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The echoed line shows that the namespace exists.
        process.stdin.write(b"made\n")
        if process.stdout.readline() != b"made\n":
            raise OSError(f"{' '.join(way)} ends with {process.wait()}")
        yield process


def _enter(holder: subprocess.Popen[bytes], enters_user: bool) -> list[str]:
    user = ["--user", "--preserve-credentials"] if enters_user else []
    return ["nsenter", f"--target={holder.pid}", *user, "--net", "--"]


def _ip(holder: subprocess.Popen[bytes], enters_user: bool, *lines: str) -> None:
    """Runs lines of `ip` in the namespace of a process.

    Raises:
      OSError: The kernel or `ip` refuses one of the lines.
    """
    done = subprocess.run(
        [*_enter(holder, enters_user), "ip", "-batch", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"ip: {done.stderr.strip()}")
