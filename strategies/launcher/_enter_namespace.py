"""Makes a network that only this machine's own processes are in, or enters one.

    python -I -S network_namespace.py make
    python -I -S network_namespace.py enter net=FD [user=FD] -- COMMAND...

`make` prints what it made, `net` or `user net`, or `failed: ` and a reason, and stays
until its standard input ends. `enter` becomes the command in the namespaces whose
descriptors it is given. It is a process of its own because a process with several
threads cannot enter a user namespace, and depends on nothing because Python then starts
in a few hundredths of a second.

A new network namespace has a loopback interface that is down, and no other (man 7
network_namespaces). Making one takes CAP_SYS_ADMIN, which an ordinary user has in a new
user namespace (man 7 user_namespaces, man 2 unshare, man 2 setns). Users and groups are
numbered there as outside, so that files belong to whom they belong.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

# Linux, include/uapi/linux/sched.h.
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
# Linux, include/uapi/linux/sockios.h and if.h; man 7 netdevice.
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_KINDS = {"user": _CLONE_NEWUSER, "net": _CLONE_NEWNET}


def make() -> str:
    """Moves this process into a new network whose loopback interface is up.

    Returns:
      The kinds of namespaces that were made, those to be entered first at the front.

    Raises:
      OSError: this machine does not allow it.
    """
    kinds = "net"
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # A process may map its own group only after it has given up setgroups.
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(content)
        kinds = "user net"
    _bring_loopback_up()
    return kinds


def enter(namespaces: Sequence[str], command: Sequence[str]) -> None:
    """Becomes the command inside namespaces, each `kind=descriptor`.

    Raises:
      OSError: one cannot be entered, or there is no such command.
    """
    for text in namespaces:
        kind, _, descriptor = text.partition("=")
        _call("setns", int(descriptor), _KINDS[kind])
        os.close(int(descriptor))
    os.execvp(command[0], list(command))


def _bring_loopback_up() -> None:
    # Not needed to enter, which every task of a cluster does.
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        # struct ifreq: a name of 16 bytes and a union of 24.
        request = struct.pack("16sh22x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _call(name: str, *arguments: int) -> None:
    """A function of the C library; Python has these two from 3.12 on.

    Raises:
      OSError: it failed; PermissionError where that is the reason.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(arguments: Sequence[str]) -> None:
    """Does what the command line asks for."""
    if arguments[0] == "enter":
        end = arguments.index("--")
        enter(arguments[1:end], arguments[end + 1 :])
    try:
        said = make()
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ENOSPC:
            reason = "no more namespaces may be made here"
        said = f"failed: {reason}"
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
