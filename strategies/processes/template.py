"""A template, seen from the process that wants others forked from it."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from strategies.processes.forked_process import ForkedProcess
from strategies.processes.parent import LAUNCHER_PID, adopting_orphans
from strategies.processes.process_title import ROOM, ROOM_ARGUMENT, ROOM_VARIABLE
from strategies.processes.request import Request
from strategies.processes.template_environment import FORKED, own_mark, read_at_import
from strategies.processes.template_process import serve_in_fork

_PROGRAM = "strategies.processes.template_process"
_LONGEST_ANSWER = 64


class Template:
    """A process that has done the imports, and is forked for every process."""

    def __init__(self, process: subprocess.Popen | ForkedProcess, link: socket.socket):
        self.pid = process.pid
        self._process = process
        self._link = link
        self._is_ready = False

    def wait_until_ready(self) -> None:
        """Waits for the end of the imports.

        Raises:
          OSError: The template has ended.
        """
        if not self._is_ready:
            self._answer()
            self._is_ready = True

    def fork(self, request: Request, descriptors: Sequence[int]) -> int:
        """Starts a process as a child of this process, and returns its ID.

        Args:
          request: Process to start.
          descriptors: Standard output and error, then a descriptor for each namespace.

        Raises:
          OSError: The template has ended, or cannot take the request, or the system
            allows no further process. No process runs.
        """
        self.wait_until_ready()
        # If the template is killed before it has sent the process's ID, nobody knows of
        # the process. So the process waits for this byte, and ends without it.
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb", buffering=0) as go_ahead:
            try:
                with adopting_orphans():
                    request.send(self._link, [reader, *descriptors])
                    answer = self._answer()
            finally:
                os.close(reader)
            if answer < 0:
                raise OSError(-answer, os.strerror(-answer))
            # It may have been killed already.
            with contextlib.suppress(BrokenPipeError):
                go_ahead.write(b"1")
        return answer

    def close(self) -> None:
        """Ends the template. The processes that it has started continue."""
        self._link.close()
        self._process.kill()
        self._process.wait()

    def _answer(self) -> int:
        answer = self._link.recv(_LONGEST_ANSWER)
        if not answer:
            raise OSError(0, "the template has ended")
        return int(answer)


def start_template(preload: str, environment: Mapping[str, str]) -> Template:
    """Starts a template as a new program; returns before it has done the imports.

    Args:
      preload: Module with a function of that name, which does the imports.
      environment: Variables of the processes that will be asked for.
    """
    link, other = _connection()
    program, descriptor = [sys.executable, "-m", _PROGRAM], str(other.fileno())
    with other:
        process = subprocess.Popen(
            [*program, descriptor, preload, ROOM_ARGUMENT],
            env={
                **read_at_import(environment),
                LAUNCHER_PID: str(os.getpid()),
                ROOM_VARIABLE: ROOM,
            },
            pass_fds=(other.fileno(),),
            stdin=subprocess.DEVNULL,
            # A forked process gets other streams. An import that fails here fails
            # again, and says why, in the process that is started instead.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Template(process, link)


def fork_template(environment: Mapping[str, str]) -> Template | None:
    """Forks a template from this process, or returns None if that cannot be one.

    It has to be forked from a template itself, with unchanged variables and one thread.
    """
    if environment.get(FORKED) != own_mark(environment):
        return None
    if threading.active_count() > 1:
        return None
    link, other = _connection()
    parent = os.getpid()
    # What waits in a buffer would be printed by both.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        serve_in_fork(other, parent)
    other.close()
    return Template(ForkedProcess([_PROGRAM], pid), link)


def _connection() -> tuple[socket.socket, socket.socket]:
    # This type keeps the limits of messages.
    link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return link, other
