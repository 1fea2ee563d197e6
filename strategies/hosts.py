"""Which hosts a cluster may be on without being asked. Does not import TensorFlow."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from strategies.settings import UsageError, shown

# What TensorFlow's servers are, whatever their network is (TensorFlow 2.21, and
# SECURITY.md of its sources).
WHAT_IT_MEANS = (
    "TensorFlow's servers ask for no password and encrypt nothing, and whoever can "
    "connect to one can run any program there"
)


def is_loopback(host: str) -> bool:
    """Whether a host of host:port is this machine and nothing else.

    Names other than localhost are not looked up: what they lead to can change.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def has_remote(addresses: Iterable[str]) -> bool:
    """Whether one of many host:port is not on the loopback interface."""
    return not all(is_loopback(each.rpartition(":")[0]) for each in addresses)


def check_hosts(hosts: Mapping[str, str]) -> None:
    """Checks that all tasks are on this machine, for a user who has not said more.

    Args:
      hosts: by where each stands, such as a key of TF_CONFIG.

    Raises:
      UsageError: naming the first that is not.
    """
    for where, host in hosts.items():
        if not is_loopback(host):
            raise UsageError(
                f"{where} is {shown(host)}, which is not this machine's loopback: "
                f"{WHAT_IT_MEANS}; add --allow_remote_hosts if the network keeps "
                "everybody else out, or use 127.0.0.1."
            )
