"""Start of processes of this project: as new programs, or by fork from a template."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from strategies.processes.forked_process import ForkedProcess, Process
from strategies.processes.network_isolation import Network
from strategies.processes.request import Request
from strategies.processes.template import Template, fork_template, start_template
from strategies.processes.template_environment import read_at_import


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Program to run in a process, which is in a new session and reads no input.

    Attributes:
      command: Words of the command line.
      environment: All environment variables by name.
      stdout: File, `subprocess.PIPE`, `subprocess.DEVNULL`, or None for this process's.
      stderr: File, `subprocess.PIPE`, or `subprocess.STDOUT`.
      folder: Working directory; None for that of this process.
      network: Network in which the process runs.
      cores: Cores that the process may use; empty for this process's.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    stdout: IO[str] | int | None
    stderr: IO[str] | int
    folder: str | None = None
    network: Network = dataclasses.field(default_factory=Network)
    cores: Sequence[int] = ()


class ProcessStarter:
    """Starts every process as a new program."""

    def begin(self, environment: Mapping[str, str]) -> None:
        """Begins to prepare for processes with these variables; returns at once."""

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Prepares for processes with these variables: the first starts fast."""

    def start(self, program: Program) -> Process:
        process: subprocess.Popen[str] = subprocess.Popen(
            program.network.command(program.command),
            pass_fds=tuple(program.network.descriptors.values()),
            env=program.environment,
            cwd=program.folder,
            stdin=subprocess.DEVNULL,
            stdout=program.stdout,
            stderr=program.stderr,
            # A terminal's Ctrl-C reaches this process only.
            start_new_session=True,
            text=True,
            errors="replace",
        )
        if program.cores:
            # The process may have ended already.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, program.cores)
        return process

    def template_pids(self) -> list[int]:
        """Returns the IDs of the processes that others are forked from."""
        return []

    def close(self) -> None:
        """Releases what the starter holds. Its processes continue."""

    def __enter__(self) -> ProcessStarter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class WarmStarter(ProcessStarter):
    """Forks processes from templates, which have done their imports.

    There is one template for every set of environment variables that matters at an
    import. What no template can start is started as a new program: another command than
    `python -m`, and every command if the imports fail.
    """

    def __init__(self, preload: str):
        """Forks a template if this process was forked from one itself.

        Args:
          preload: Module with a function of that name, which does the imports.
        """
        self._preload = preload
        self._templates: dict[frozenset[tuple[str, str]], Template] = {}
        own = fork_template(os.environ)
        if own is not None:
            self._templates[_key(os.environ)] = own

    def template_pids(self) -> list[int]:
        return [template.pid for template in self._templates.values()]

    def begin(self, environment: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            self._template(environment)

    def prepare(self, environment: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            self._template(environment).wait_until_ready()

    def start(self, program: Program) -> Process:
        if [*program.command[:2]] == [sys.executable, "-m"]:
            with contextlib.suppress(OSError):
                return self._fork(program)
        return super().start(program)

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()

    def _fork(self, program: Program) -> ForkedProcess:
        request = Request(
            command=program.command,
            environment=program.environment,
            folder=program.folder or os.getcwd(),
            parent=os.getpid(),
            namespaces=list(program.network.descriptors),
            cores=program.cores,
        )
        template = self._template(program.environment)
        with contextlib.ExitStack() as writers, contextlib.ExitStack() as readers:
            stdout, out = _opened(program.stdout, writers, readers)
            stderr, error = None, out
            if program.stderr != subprocess.STDOUT:
                stderr, error = _opened(program.stderr, writers, readers)
            namespaces = program.network.descriptors.values()
            pid = template.fork(request, [out, error, *namespaces])
            readers.pop_all()
        return ForkedProcess(program.command, pid, stdout, stderr)

    def _template(self, environment: Mapping[str, str]) -> Template:
        key = _key(environment)
        if key not in self._templates:
            self._templates[key] = start_template(self._preload, environment)
        return self._templates[key]


def _key(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(read_at_import(environment).items())


def _opened(
    target: IO[str] | int | None,
    writers: contextlib.ExitStack,
    readers: contextlib.ExitStack,
) -> tuple[IO[str] | None, int]:
    """Returns the reader of a stream, if it is a pipe, and the descriptor to write."""
    if target == subprocess.PIPE:
        reader, writer = os.pipe()
        writers.callback(os.close, writer)
        return readers.enter_context(os.fdopen(reader, errors="replace")), writer
    if target is None:
        return None, 1
    if target == subprocess.DEVNULL:
        # A number that `subprocess` understands, and no descriptor that can be sent.
        nothing = os.open(os.devnull, os.O_WRONLY)
        writers.callback(os.close, nothing)
        return None, nothing
    return None, target if isinstance(target, int) else target.fileno()
