"""Program of a template: imports modules once, and forks itself for each request.

    python -m strategies.processes.template_process FD MODULE ROOM

A request arrives at the socket FD. MODULE has a function `preload`, which does the
imports. The forked process is first a child of a short-lived one and then, because
that ends, of the process that asks (`strategies.processes.parent.adopting_orphans`), so
that waiting, signals and the death with the parent are the same as with `subprocess`.
A template has one thread of Python's and has not used TensorFlow, which cannot be
forked once it has started its threads.
"""

import errno
import gc
import importlib
import io
import os
import random
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from strategies.common.native_log import exit_at_once
from strategies.processes import process_title
from strategies.processes._enter_namespace import enter_namespace
from strategies.processes.parent import LAUNCHER_PID, end_with_launcher
from strategies.processes.request import Request, receive
from strategies.processes.template_environment import (
    FORKED,
    TEMPLATE_FILE_KIB,
    apply_allocator_settings,
    file_kib,
    own_mark,
)

_SECONDS_BETWEEN_LOOKS = 0.0005
_TITLE = ("python", "-m", "strategies.processes.template_process")


def main(arguments: Sequence[str]) -> None:
    """Does the imports and serves requests, until the process that asks has ended."""
    end_with_launcher()
    descriptor, preload, _ = arguments
    # Before the imports, so that no library holds addresses of the first environment.
    environment = dict(os.environ)
    del environment[process_title.ROOM_VARIABLE]
    os.environ.clear()
    os.environ.update(environment)
    process_title.show(_TITLE, environment)
    process_title.set_name(process_title.TEMPLATE)
    importlib.import_module(preload).preload()
    # Collections would write to pages that all processes share.
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as connection:
        serve(connection)


def serve_in_fork(connection: socket.socket, parent: int) -> NoReturn:
    """Serves requests in a process that its parent has just forked, until both end."""
    try:
        os.environ[LAUNCHER_PID] = str(parent)
        end_with_launcher()
        os.setsid()
        process_title.show(_TITLE, os.environ)
        process_title.set_name(process_title.TEMPLATE)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        # A lock of the parent would be held as long as its descriptor is open here.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        _take_back_signal_handlers()
        serve(connection)
    finally:
        os._exit(0)


def _take_back_signal_handlers() -> None:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            is_interrupt = number == signal.SIGINT
            default = signal.default_int_handler if is_interrupt else signal.SIG_DFL
            signal.signal(number, default)


def serve(connection: socket.socket) -> None:
    """Forks a process for each request until the connection ends."""
    inherited = int(os.environ.get(TEMPLATE_FILE_KIB, 0))
    os.environ[TEMPLATE_FILE_KIB] = str(max(file_kib(), inherited))
    # The answer to no request says that the imports are done.
    connection.send(b"0")
    while (received := receive(connection)) is not None:
        request, descriptors = received
        pid = _fork_for_parent(request, descriptors, connection)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


def _fork_for_parent(
    request: Request, descriptors: Sequence[int], connection: socket.socket
) -> int:
    """Forks a process that loses its parent at once.

    Returns:
      Process ID; the negative number of an error if the system allows no process.
    """
    reader, writer = os.pipe()
    between = _fork()
    if between == 0:
        os.close(reader)
        between = os.getpid()
        pid = _fork()
        if pid == 0:
            os.close(writer)
            connection.close()
            _become(request, descriptors, between)
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        if between < 0:
            return between
        pid = int(answer.read())
    # The kernel hands over the children of a process before its end can be seen.
    os.waitpid(between, 0)
    return pid


def _fork() -> int:
    """Returns what `os.fork` does, or the negative number of its error."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def _become(request: Request, descriptors: Sequence[int], between: int) -> NoReturn:
    """Runs the requested program in this forked process, and ends the process.

    Args:
      request: Program to run.
      descriptors: Pipe with the word to go on, standard output and error, then a
        descriptor for each namespace.
      between: ID of the process that has forked this one.
    """
    try:
        _wait_for_parent(request.parent, between)
        os.setsid()
        go_ahead, output, error, *namespaces = descriptors
        if not os.read(go_ahead, 1):
            # The process that asked does not know of this one.
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(error, 2)
        for kind, descriptor in zip(request.namespaces, namespaces, strict=True):
            enter_namespace(kind, descriptor)
        for descriptor in descriptors:
            os.close(descriptor)
        if request.cores:
            os.sched_setaffinity(0, request.cores)
        os.chdir(request.folder)
        _set_environment(request)
        _reset_random_numbers()
        _reopen_standard_streams()
        exit_code = _run(request.command)
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    exit_at_once(exit_code)


def _wait_for_parent(parent: int, between: int) -> None:
    while os.getppid() == between:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if os.getppid() != parent:
        # The process that asked has died.
        os._exit(1)


def _set_environment(request: Request) -> None:
    template_file_kib = os.environ[TEMPLATE_FILE_KIB]
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ[FORKED] = own_mark(request.environment)
    os.environ[TEMPLATE_FILE_KIB] = template_file_kib
    process_title.show(request.command, os.environ)
    process_title.set_name(os.path.basename(request.command[0]))
    apply_allocator_settings(request.environment)


def _reset_random_numbers() -> None:
    """Seeds the generators that a new process would have seeded from the system."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _reopen_standard_streams() -> None:
    """Gives the streams the buffers that a new process would have given them."""
    # Python/pylifecycle.c, `create_stdio`.
    for name, number in (("stdout", 1), ("stderr", 2)):
        former = getattr(sys, name)
        # The template has the same PYTHONUNBUFFERED, which makes both write through.
        is_unbuffered = former.write_through
        raw = io.FileIO(number, "wb", closefd=False)
        raw.name = former.name
        stream = io.TextIOWrapper(
            raw if is_unbuffered else io.BufferedWriter(raw),
            encoding=former.encoding,
            errors=former.errors,
            line_buffering=not is_unbuffered and (number == 2 or os.isatty(number)),
            write_through=is_unbuffered,
        )
        stream.mode = "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(command: Sequence[str]) -> int:
    """Runs `python -m module arguments`, and returns the exit code."""
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    sys.path[0] = os.getcwd()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
