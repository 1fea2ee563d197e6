"""Starts the program as a user does, and looks at what it leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import IO, Any

import psutil

from strategies.common.errors import UsageError
from strategies.processes.forked_process import Process
from strategies.processes.process_title import TEMPLATE
from strategies.processes.starter import ProcessStarter, Program, WarmStarter
from strategies.processes.template_environment import read_at_import
from trainers.cli import flags, warm_start
from trainers.cli.tensorflow_setup import variables_of_import

ROOT = pathlib.Path(__file__).parents[1]

# A run of these tests takes seconds. The rest is for machines with much else to do.
PATIENCE_SECONDS = 180.0
# A prediction makes a dozen runs of several processes. Below the limit of a test.
PREDICT_PATIENCE_SECONDS = 290.0

_SECONDS_BETWEEN_LOOKS = 0.01


def give_children_default_signals() -> None:
    """Lets every process that this one starts begin with the default signal handling.

    A process passes on which signals it ignores and blocks, and a background job, nohup
    and some CI systems start theirs with SIGINT or SIGHUP ignored. A handler is not
    passed on: the kernel gives a new program the default in its place. So this process
    gets one that does nothing, and is still not ended by what it was to ignore.
    """
    # Python ignores these two itself, and subprocess gives them back.
    ours = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - ours:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Takes the place of ignoring a signal."""


def ignoring(*numbers: int) -> list[str]:
    """Returns the beginning of a command that runs another with these ignored."""
    words = " ".join(str(int(number)) for number in numbers)
    return [sys.executable, "-c", _IGNORING, words]


_IGNORING = """
import os, signal, sys
for number in sys.argv[1].split():
    signal.signal(int(number), signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "trainers.main", *flags]


def environment() -> dict[str, str]:
    """A user's: without what tests set for TensorFlow, importable from any folder."""
    ours = {name: v for name, v in os.environ.items() if not name.startswith("TF_")}
    return {**ours, "PYTHONPATH": str(ROOT)}


def run(
    *flags: str, folder: pathlib.Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end, in a folder, with further environment variables."""
    return run_words(command(*flags), folder, **variables)


def run_words(
    words: Sequence[str], folder: pathlib.Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The same with any command."""
    return run_patiently(words, PATIENCE_SECONDS, folder, variables)


def run_patiently(
    words: Sequence[str],
    patience_seconds: float,
    folder: pathlib.Path = ROOT,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """The same with a time limit."""
    with start_words(words, folder, variables) as process:
        try:
            return end_of(process, patience_seconds)
        except BaseException:
            process.kill()
            raise


def start_words(
    words: Sequence[str],
    folder: pathlib.Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    stdout: IO[Any] | int = subprocess.PIPE,
    stderr: IO[Any] | int = subprocess.PIPE,
) -> Process:
    """Starts a command, by fork from a template if it is a module of Python.

    Args:
      words: the command.
      folder: its working directory.
      variables: environment variables in addition to a user's.
      stdout: a file or a pipe.
      stderr: the same.
    """
    is_module = [*words[:2]] == [sys.executable, "-m"] and "--verbose" not in words
    asked = {**environment(), **variables}
    starter: ProcessStarter = ProcessStarter()
    if is_module and read_at_import(asked) == templates().variables:
        starter = templates().starter
        if [*words[:3]] == command():
            asked = {**_variables_of_import(words[2:]), **asked}
    return starter.start(
        Program(
            command=words,
            environment=asked,
            stdout=stdout,
            stderr=stderr,
            folder=str(folder),
        )
    )


def _variables_of_import(argv: Sequence[str]) -> dict[str, str]:
    """Those that the program would set for itself before it imports TensorFlow."""
    try:
        return variables_of_import(flags.parse(argv))
    except (UsageError, flags.HelpRequested):
        return {}


@dataclasses.dataclass(frozen=True)
class Templates:
    """What starts the program in the tests of this process.

    Attributes:
      starter: forks it.
      variables: those of the environment in which it is forked. In another it is
        started as a new program: a template for one test would take as long.
    """

    starter: WarmStarter
    variables: Mapping[str, str]


@functools.cache
def templates() -> Templates:
    return Templates(WarmStarter(warm_start.__name__), read_at_import(environment()))


def run_module(
    name: str, *arguments: str, folder: pathlib.Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs another module to its end, such as a benchmark, in a folder."""
    return run_words([sys.executable, "-m", name, *arguments], folder)


def train(run_folder: pathlib.Path, *flags: str) -> dict[str, Any]:
    """Trains into a folder and returns its result.json."""
    done = run(f"--run_dir={run_folder}", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return result_of(run_folder)


@contextlib.contextmanager
def started(
    *flags: str, folder: pathlib.Path, begin: list[str] | None = None
) -> Iterator[Process]:
    """Starts the program in a folder, and ends it if it still runs afterwards.

    Args:
      flags: its arguments.
      folder: its working directory.
      begin: what to run instead of the program, with the flags after it.
    """
    words = command(*flags) if begin is None else [*begin, *flags]
    process = start_words(words, folder)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


class _Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, stream: IO[str] | None):
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        if self._stream is not None and not self._stream.closed:
            self.text = self._stream.read()
            self._stream.close()


def outputs_of(
    process: Process, patience_seconds: float = PATIENCE_SECONDS
) -> tuple[str, str]:
    """Waits for a process to end; returns standard output and error, if they are pipes.

    Like `subprocess.Popen.communicate`, which a forked process has not.
    """
    deadline = time.monotonic() + patience_seconds
    readers = [_Reader(stream) for stream in (process.stdout, process.stderr)]
    for reader in readers:
        reader.join(max(deadline - time.monotonic(), 0.0))
        if reader.is_alive():
            raise subprocess.TimeoutExpired(process.args, patience_seconds)
    process.wait(max(deadline - time.monotonic(), 0.0))
    stdout, stderr = (reader.text for reader in readers)
    return stdout, stderr


def end_of(
    process: Process, patience_seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Waits for a process to end by itself."""
    stdout, stderr = outputs_of(process, patience_seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start(*flags: str, folder: pathlib.Path, **variables: str) -> Process:
    """Starts the program, which `ends_of` waits for."""
    return start_words(command(*flags), folder, variables)


def ends_of(
    tasks: Sequence[Process],
) -> list[subprocess.CompletedProcess[str]]:
    """Waits for processes to end by themselves, and ends those that do not."""
    try:
        return [end_of(task) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()


def wait_until(holds: Callable[[], bool], what: str, process: Process) -> None:
    """Looks again and again until something holds while a process runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if process.poll() is not None:
            raise AssertionError(f"ended before {what}: {end_of(process)}")
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_SECONDS} seconds for {what}")
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def task_of(launcher: int, job: str, index: int) -> psutil.Process:
    """One of the tasks that a launcher has started.

    Args:
      launcher: its process id.
      job: of the task.
      index: of the task among those of its job.
    """
    (found,) = tasks_found(launcher, job, index)
    return found


def tasks_found(launcher: int, job: str, index: int) -> list[psutil.Process]:
    """The same, or none if it has not been started yet, or has ended."""
    wanted = {"type": job, "index": index}
    return [t for t in tasks_of(launcher) if _cluster_of(t).get("task") == wanted]


def tasks_of(launcher: int) -> list[psutil.Process]:
    """All of them, without the template that they were forked from."""
    return [
        child for child in psutil.Process(launcher).children() if not is_template(child)
    ]


@contextlib.contextmanager
def networks_kept(
    tasks: Sequence[psutil.Process],
) -> Iterator[Callable[[], list[int]]]:
    """Keeps the networks of tasks, and yields a function that lists who is in them.

    The kernel gives the number of a network that is gone to the next one, such as that
    of a test beside this one.
    """
    paths = [f"/proc/{task.pid}/ns/net" for task in tasks]
    networks = {os.readlink(path) for path in paths}

    def process_ids() -> list[int]:
        found = []
        for pid in psutil.pids():
            # Some have ended meanwhile, others are not ours to ask.
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/net") in networks:
                    found.append(pid)
        return found

    with contextlib.ExitStack() as opened:
        for path in paths:
            opened.enter_context(open(path, "rb"))
        yield process_ids


def is_template(process: psutil.Process) -> bool:
    try:
        return process.name() == TEMPLATE
    except psutil.NoSuchProcess:
        return False


def _cluster_of(process: psutil.Process) -> dict[str, Any]:
    """What its TF_CONFIG says; nothing if it has none, or has just ended."""
    try:
        return json.loads(process.environ().get("TF_CONFIG", "{}"))
    except psutil.Error:
        return {}


def contents(folder: pathlib.Path) -> dict[str, bytes | str | None]:
    """Everything below a folder: the bytes of files, the targets of links."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def result_of(run_folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((run_folder / "result.json").read_text(encoding="utf-8"))


def last_step_of(run_folder: pathlib.Path) -> int:
    """The step of the last whole line of metrics.jsonl; 0 if there is none."""
    metrics = metrics_so_far(run_folder)
    return metrics[-1]["step"] if metrics else 0


def metrics_so_far(run_folder: pathlib.Path) -> list[dict[str, Any]]:
    """Of a run that may be writing a line."""
    try:
        text = (run_folder / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def metrics_of(run_folder: pathlib.Path) -> list[dict[str, Any]]:
    text = (run_folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def train_losses_of(run_folder: pathlib.Path) -> dict[int, float]:
    """By step, of every line that has one."""
    rows = metrics_of(run_folder)
    return {row["step"]: row["train_loss"] for row in rows if "train_loss" in row}


def checkpoints_of(run_folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (run_folder / "checkpoints").glob("step-*"))
