"""Hosts that a cluster may use without the user's permission.

This module does not import TensorFlow.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping

from strategies.common.errors import UsageError
from strategies.common.text import shown

# A property of TensorFlow's servers in every network (TensorFlow 2.21, and SECURITY.md
# of its sources).
NO_PROTECTION = (
    "TensorFlow's servers ask for no password and encrypt nothing, and whoever can "
    "connect to one can run any program there"
)


def is_loopback(host: str) -> bool:
    """Returns whether a host of host:port is this machine's loopback."""
    # Names other than localhost are not looked up, because their address can change
    # between the check and the use.
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def canonical_address(address: str) -> str:
    """Returns host:port in the form that all spellings of one socket share.

    All of loopback is one host: TensorFlow's servers listen on every interface, so that
    two tasks of a machine cannot have one port (127.0.0.1:1 and 127.0.0.2:1, either).
    Names are not looked up.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]").rstrip(".").lower()
    with contextlib.suppress(ValueError, OSError):
        # Also 127.1 and 0x7f000001, which the system takes for addresses.
        is_number = not host.strip("0123456789abcdefx.")
        host = socket.inet_ntoa(socket.inet_aton(host)) if is_number else host
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(host)
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        host = "localhost" if parsed.is_unspecified else str(parsed)
    host = "localhost" if is_loopback(host) else host
    return f"{host}:{int(port)}"


def has_remote(addresses: Iterable[str]) -> bool:
    """Returns whether one of several host:port is not on the loopback interface."""
    return not all(is_loopback(each.rpartition(":")[0]) for each in addresses)


def check_hosts(hosts: Mapping[str, str]) -> None:
    """Raises UsageError, which names the host, if a task is not on this machine.

    Args:
      hosts: Hosts by the place that names them, such as a key of TF_CONFIG.
    """
    for where, host in hosts.items():
        if not is_loopback(host):
            raise UsageError(
                f"{where} is {shown(host)}, which is not this machine's loopback: "
                f"{NO_PROTECTION}; add --allow_remote_hosts if the network keeps "
                "everybody else out, or use 127.0.0.1."
            )
