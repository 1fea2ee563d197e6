"""Network in which every task of a cluster has a host and a limited bandwidth.

A host is a network namespace with one interface. A cable, which is a pair of virtual
interfaces (man 4 veth), connects it to a bridge in another namespace, the switch. At
both ends of a cable the kernel delays what exceeds the bandwidth (man 8 tc-tbf), so
that a host sends and receives at most as much, at the same time, as over full-duplex
Ethernet. All of it ends with the last process that has the namespaces open. This module
does not import TensorFlow.
"""

import contextlib
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from strategies.common.errors import UsageError
from strategies.processes.network_isolation import (
    Network,
    isolated_network,
    make_networks,
)

# For tests of network devices (RFC 2544): no network of a machine has these addresses.
_NETWORK = ipaddress.ip_network("198.18.0.0/15")
_CABLE, _SWITCH = "cable", "switch"
# An ordinary user of Debian does not have these folders in PATH, where tc is.
_FOLDERS_OF_TOOLS = ("/usr/sbin", "/sbin")
# A longer burst passes more bytes at full speed after each pause. In a shorter one, a
# busy machine cannot send on time, and loses bandwidth.
_BURST_SECONDS = 0.001
# A packet of Ethernet with its headers, and the part of TCP in it.
_PACKET_BYTES, _SEGMENT_BYTES = 1514, 1448
# tc drops a packet that is larger than the burst.
_SMALLEST_BURST_BYTES = 2 * _PACKET_BYTES
# The most bytes that the kernel passes on as one packet, for a device to divide.
_MOST_BYTES_AT_ONCE = 1 << 16
# Longest wait in the queue of an interface, as in a common switch.
_QUEUE_SECONDS = 0.05
# The same on all machines (RFC 9438): bbr, the default of some kernels, sent 25 to 49
# Mbit/s of 100 while it received as much.
_CONGESTION_CONTROL = "cubic"


def host_addresses() -> Iterator[str]:
    """Yields the addresses of the hosts, one after the other."""
    return map(str, _NETWORK.hosts())


@contextlib.contextmanager
def networks_of_tasks(
    tasks: Mapping[str, str],
    bandwidth_mbit: float | None,
    isolation: str,
    say: Callable[[str], None],
) -> Iterator[Mapping[str, Network]]:
    """Yields the network of each task, by its name.

    Args:
      tasks: Address (host:port) of each task by name.
      bandwidth_mbit: Megabits per second that each task sends and receives at most;
        None if all tasks share one network, whose bandwidth is not limited.
      isolation: Isolation of a network that all tasks share.
      say: Function that receives one warning if there is no isolated network.

    Raises:
      UsageError: This machine allows no such network.
    """
    if bandwidth_mbit is None:
        with isolated_network(isolation, say) as network:
            yield dict.fromkeys(tasks, network)
        return
    hosts = [address.rpartition(":")[0] for address in tasks.values()]
    with contextlib.ExitStack() as opened:
        setting = f"--emulated_bandwidth_mbit={bandwidth_mbit:g}"
        tools = [_path_of(name, setting) for name in ("ip", "tc")]
        try:
            networks = _connected(hosts, round(1e6 * bandwidth_mbit), tools, opened)
        except OSError as error:
            raise UsageError(
                f"{setting} cannot be met, because this machine allows no such network "
                f"({error.strerror}): leave it out, or use a machine that does."
            ) from error
        yield dict(zip(tasks, networks, strict=True))


def _path_of(tool: str, setting: str) -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = shutil.which(tool, path=os.pathsep.join([*folders, *_FOLDERS_OF_TOOLS]))
    if path is None:
        raise UsageError(
            f"{setting} needs the program {tool}, which is not installed: install it "
            "(package iproute2 of Debian and Ubuntu), or leave the flag out."
        )
    return path


def _connected(
    hosts: Sequence[str],
    bits_per_second: int,
    tools: Sequence[str],
    opened: contextlib.ExitStack,
) -> list[Network]:
    """Makes a network for each host, and connects all of them."""
    ip, tc = tools
    switch, *networks = make_networks(1 + len(hosts), opened)
    ports = [f"port{number}" for number in range(len(hosts))]
    at_once = _bytes_at_once(bits_per_second)
    # The switch stays as long as this process has it open.
    lines = [f"link add {_SWITCH} type bridge", f"link set {_SWITCH} up"]
    for port, network in zip(ports, networks, strict=True):
        host = f"/proc/self/fd/{network.descriptors['net']}"
        lines += [
            f"link add {port} type veth peer name {_CABLE} netns {host}",
            f"link set {port} master {_SWITCH} gso_max_size {at_once} up",
        ]
    _change(switch, ip, lines, networks)
    _change(switch, tc, [_limit(port, bits_per_second) for port in ports])
    for address, network in zip(hosts, networks, strict=True):
        address_and_mask = f"{address}/{_NETWORK.prefixlen}"
        _change(network, tc, [_limit(_CABLE, bits_per_second)])
        _change(
            network,
            ip,
            [
                # The route that comes with an address names no congestion control.
                f"address add {address_and_mask} dev {_CABLE} noprefixroute",
                f"link set {_CABLE} gso_max_size {at_once} up",
                f"route add {_NETWORK} dev {_CABLE} src {address} "
                f"congctl {_CONGESTION_CONTROL}",
            ],
        )
    return networks


def _limit(interface: str, bits_per_second: int) -> str:
    """Returns the line for tc that limits how much an interface sends."""
    return (
        f"qdisc add dev {interface} root tbf rate {bits_per_second}bit "
        f"burst {_burst_bytes(bits_per_second)} latency {1e3 * _QUEUE_SECONDS:g}ms"
    )


def _burst_bytes(bits_per_second: int) -> int:
    burst = round(bits_per_second / 8 * _BURST_SECONDS)
    return max(burst, _SMALLEST_BURST_BYTES)


def _bytes_at_once(bits_per_second: int) -> int:
    """Returns the most bytes of TCP that pass the interfaces as one packet.

    tc divides a packet that is larger than the burst, with its headers, into packets of
    Ethernet, each of which takes the processor as long as a large one. Eight hosts on
    two cores received 37 to 83 Mbit/s of 100 then, and 91 to 94 with this limit.
    """
    of_burst = _burst_bytes(bits_per_second) * _SEGMENT_BYTES // _PACKET_BYTES
    return min(of_burst, _MOST_BYTES_AT_ONCE)


def _change(
    network: Network, tool: str, lines: Sequence[str], others: Sequence[Network] = ()
) -> None:
    """Runs lines of ip or tc in a network.

    Args:
      network: Network to change.
      tool: Path of the program.
      lines: Lines, each without the name of the program.
      others: Further networks that the lines name.

    Raises:
      OSError: The program or the kernel refuses a line.
    """
    descriptors = {
        fd for each in (network, *others) for fd in each.descriptors.values()
    }
    done = subprocess.run(
        network.command([tool, "-batch", "-"], is_admin=True),
        pass_fds=tuple(descriptors),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        first = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise OSError(0, f"{os.path.basename(tool)}: {first.rstrip('.')}")
