"""Program that makes or enters an isolated network namespace.

    python -I -S _enter_namespace.py make NUMBER
    python -I -S _enter_namespace.py enter [user=FD] net=FD [admin] -- COMMAND...

`make` makes networks. It prints the kinds of namespaces, `net` or `user net`, and its
descriptor of each network, or `failed: ` and a reason, and stays until its standard
input ends. `enter` becomes the command in the namespaces of the given descriptors;
after `admin` the command may change the network. The program is a separate process,
because a process with several threads cannot enter a user namespace. It depends on
nothing, because Python then starts in a few hundredths of a second.

A new network namespace has a loopback interface that is down, and no other (man 7
network_namespaces). Making one takes CAP_SYS_ADMIN, which an ordinary user has in a new
user namespace (man 7 user_namespaces, man 2 unshare, man 2 setns). Users and groups
have the same numbers inside as outside, so that files keep their owners.
"""

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
# Linux, include/uapi/linux/capability.h and prctl.h.
_CAPABILITY_VERSION = 0x20080522
_CAP_NET_ADMIN = 12
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2


def make(number: int) -> str:
    """Makes networks whose loopback interfaces are up, and moves into the last one.

    Returns:
      The kinds of the new namespaces, in the order of entering, and a descriptor of
      each network, separated by spaces.

    Raises:
      OSError: This machine does not allow network namespaces.
    """
    kinds = "net"
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        # Read before the call: in a new user namespace without a map, both are 65534.
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
    descriptors = []
    for index in range(number):
        if index:
            _call("unshare", _CLONE_NEWNET)
        _bring_loopback_up()
        descriptors.append(os.open("/proc/self/ns/net", os.O_RDONLY))
    return f"{kinds} {' '.join(map(str, descriptors))}"


def enter(namespaces: Sequence[str], command: Sequence[str]) -> None:
    """Becomes the command inside namespaces, each `kind=descriptor`; never returns.

    Raises:
      OSError: A namespace cannot be entered, or there is no such command.
    """
    for text in namespaces:
        if text == "admin":
            _keep_network_administration()
            continue
        kind, _, descriptor = text.partition("=")
        enter_namespace(kind, int(descriptor))
        os.close(int(descriptor))
    os.execvp(command[0], list(command))


def enter_namespace(kind: str, descriptor: int) -> None:
    """Moves this process into a namespace.

    Args:
      kind: Kind of the namespace, "net" or "user".
      descriptor: Open file of the namespace.

    Raises:
      OSError: The namespace cannot be entered; a user namespace by a process with
        several threads, for one.
    """
    _call("setns", descriptor, _KINDS[kind])


def _keep_network_administration() -> None:
    """Lets the next program change the network, whoever the user is.

    `execvp` takes capabilities from a user other than root unless they are ambient, and
    ambient ones must be inheritable (man 7 capabilities).

    Raises:
      OSError: This process may not change the network itself.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Effective, permitted and inheritable capabilities, each in two parts of 32 bits.
    data = (ctypes.c_uint32 * 6)()
    _call("capget", header, data)
    data[2] |= 1 << _CAP_NET_ADMIN
    _call("capset", header, data)
    _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_NET_ADMIN, 0, 0)


def _bring_loopback_up() -> None:
    # `enter` does without these imports: it delays the start of every task.
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        # struct ifreq: a name of 16 bytes and a union of 24, here flags of 2 bytes.
        request = struct.pack("16sh22x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _call(name: str, *arguments: int | ctypes.Array[ctypes.c_uint32]) -> None:
    """Calls a function of the C library.

    Raises:
      OSError: The call failed; PermissionError if a permission is missing.
    """
    # Python itself has `os.unshare` and `os.setns` from 3.12 on.
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(arguments: Sequence[str]) -> None:
    """Runs the `make` or `enter` of the command line."""
    if arguments[0] == "enter":
        end = arguments.index("--")
        enter(arguments[1:end], arguments[end + 1 :])
    try:
        said = make(int(arguments[1]))
    except OSError as error:
        reason = error.strerror
        # The system's own words would be "No space left on device".
        if error.errno == errno.ENOSPC:
            reason = "no more namespaces may be made here"
        said = f"failed: {reason}"
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    # The parent opens the namespaces in /proc while this process lives, then closes the
    # pipe.
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
