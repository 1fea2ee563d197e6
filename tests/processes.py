"""Functions that start the program as a user does and read what it writes."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
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
from strategies.processes.network_isolation import Network
from strategies.processes.process_title import TEMPLATE
from strategies.processes.starter import ProcessStarter, Program, WarmStarter
from strategies.processes.template_environment import read_at_import
from trainers.cli import flags, warm_start
from trainers.cli.tensorflow_setup import variables_of_import
from trainers.config.config import Config

ROOT = pathlib.Path(__file__).parents[1]

# A run of these tests takes seconds. The limit is far above that because a machine may
# be busy with other work.
PATIENCE_SECONDS = 180.0
# A prediction makes a dozen runs of several processes. The value is below pytest's time
# limit of a test, so that the failure shows the output of the program.
PREDICT_PATIENCE_SECONDS = 290.0

_SECONDS_BETWEEN_LOOKS = 0.01

# Flags of runs whose evaluations nobody reads. Each task that trains traces one.
NO_EVALUATION = ("--eval_every_steps=none", "--set=report.final_evaluation=false")

# Its variables hide all of TensorFlow's own output, which a test looks for.
_SETS_VARIABLES_ITSELF = "strategies.hello_cluster"


def give_children_default_signals() -> None:
    """Gives every process that this one starts the default signal handling.

    A child process inherits the signals that its parent ignores and blocks, and a
    background job, nohup and some CI systems start processes with SIGINT or SIGHUP
    ignored. A child does not inherit a handler: the kernel gives a new program the
    default in its place. So this process gets a handler that does nothing: it still
    survives these signals, and its children get the default.
    """
    # Python ignores these two itself, and subprocess gives them back.
    ours = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - ours:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal by doing nothing, in place of ignoring it."""


def ignoring(*numbers: int) -> list[str]:
    """Returns the first words of a command that runs another with signals ignored."""
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
    """Returns a user's environment variables.

    Variables that tests set for TensorFlow are left out, and the project can be
    imported from any folder.
    """
    ours = {name: v for name, v in os.environ.items() if not name.startswith("TF_")}
    return {**ours, "PYTHONPATH": str(ROOT)}


def run(
    *flags: str, folder: pathlib.Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end, in a folder, with more environment variables."""
    return run_words(command(*flags), folder, **variables)


def run_words(
    words: Sequence[str], folder: pathlib.Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs any command to its end, with the time limit of all tests."""
    return run_patiently(words, PATIENCE_SECONDS, folder, variables)


def run_patiently(
    words: Sequence[str],
    patience_seconds: float,
    folder: pathlib.Path = ROOT,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Runs any command to its end, and kills it at a time limit in seconds."""
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
    network: Network | None = None,
) -> Process:
    """Starts a command, by fork from a template if it is a module of Python.

    Args:
      words: Command and its arguments.
      folder: Working directory of the command.
      variables: Environment variables in addition to a user's.
      stdout: File or pipe for the standard output.
      stderr: File or pipe for the standard error.
      network: Network of the process, if it is not that of this process.
    """
    is_module = [*words[:2]] == [sys.executable, "-m"] and "--verbose" not in words
    asked = {**environment(), **variables}
    starter: ProcessStarter = ProcessStarter()
    if is_module and read_at_import(asked) == templates().variables:
        starter = templates().starter
        if words[2] != _SETS_VARIABLES_ITSELF:
            asked = {**_variables_of_import(words[2:]), **asked}
    return starter.start(
        Program(
            command=words,
            environment=asked,
            stdout=stdout,
            stderr=stderr,
            folder=str(folder),
            network=network or Network(),
        )
    )


def _variables_of_import(argv: Sequence[str]) -> dict[str, str]:
    """Returns the variables that the program sets before it imports TensorFlow.

    They are the default ones if the command is not the program's, so that it is forked
    from the same template.
    """
    try:
        return variables_of_import(flags.parse(argv))
    except (UsageError, flags.HelpRequested):
        return variables_of_import(Config())


@dataclasses.dataclass(frozen=True)
class Templates:
    """The process starter that all tests of this process share.

    Attributes:
      starter: Starter that forks the program from a template.
      variables: Variables of the environment in which the program is forked. In another
        environment it is started as a new program, because a template for one test
        would take as long.
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
    """Starts the program in a folder, and kills it if it still runs afterwards.

    Args:
      flags: Arguments of the program.
      folder: Working directory of the program.
      begin: Command to run instead of the program; the flags follow it.
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
    """Starts the program; the caller waits for it by `ends_of`."""
    return start_words(command(*flags), folder, variables)


def ends_of(
    tasks: Sequence[Process],
) -> list[subprocess.CompletedProcess[str]]:
    """Waits for processes to end by themselves, and kills them when one does not."""
    try:
        return [end_of(task) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()


def wait_until(holds: Callable[[], bool], what: str, process: Process) -> None:
    """Waits until a condition holds; fails when the process ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if process.poll() is not None:
            raise AssertionError(f"ended before {what}: {end_of(process)}")
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_SECONDS} seconds for {what}")
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def task_of(launcher: int, job: str, index: int) -> psutil.Process:
    """Returns a task that a launcher has started.

    Args:
      launcher: Process id of the launcher.
      job: Job of the task, such as worker.
      index: Index of the task in its job.
    """
    (found,) = tasks_found(launcher, job, index)
    return found


def tasks_found(launcher: int, job: str, index: int) -> list[psutil.Process]:
    """Returns the task in a list, which is empty before its start and after its end."""
    wanted = {"type": job, "index": index}
    return [t for t in tasks_of(launcher) if _cluster_of(t).get("task") == wanted]


def tasks_of(launcher: int) -> list[psutil.Process]:
    """Returns all tasks of a launcher, without the template it forked them from."""
    return [
        child for child in psutil.Process(launcher).children() if not is_template(child)
    ]


@contextlib.contextmanager
def networks_kept(
    tasks: Sequence[psutil.Process],
) -> Iterator[Callable[[], list[int]]]:
    """Keeps the network namespaces of tasks open, and yields a function about them.

    The function returns the ids of the processes in these namespaces. Without an open
    file the kernel may give the number of a removed namespace to the next one, such as
    that of a test that runs at the same time.
    """
    paths = [f"/proc/{task.pid}/ns/net" for task in tasks]
    networks = {os.readlink(path) for path in paths}

    def process_ids() -> list[int]:
        found = []
        for pid in psutil.pids():
            # A process may have ended meanwhile, or may belong to another user.
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
    """Returns the TF_CONFIG of a process, empty if it has none or has ended."""
    try:
        return json.loads(process.environ().get("TF_CONFIG", "{}"))
    except psutil.Error:
        return {}


def contents(folder: pathlib.Path) -> dict[str, bytes | str | None]:
    """Returns all that is below a folder, by relative path.

    The value is the bytes of a file, the target of a link, and None for a folder.
    """
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def copy_up_to(step: int, run_folder: pathlib.Path, copy: pathlib.Path) -> None:
    """Copies a run as if it had been killed after a checkpoint.

    Args:
      step: Step of the newest checkpoint in the copy.
      run_folder: Folder of a run with a checkpoint of this step.
      copy: Folder that is made.
    """
    shutil.copytree(run_folder, copy)
    (copy / "result.json").unlink()
    newest = f"step-{step:08}"
    assert newest in checkpoints_of(copy)
    for name in checkpoints_of(copy):
        if name > newest:
            shutil.rmtree(copy / "checkpoints" / name)


def result_of(run_folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((run_folder / "result.json").read_text(encoding="utf-8"))


def last_step_of(run_folder: pathlib.Path) -> int:
    """Returns the step of the last whole line of metrics.jsonl, or 0."""
    metrics = metrics_so_far(run_folder)
    return metrics[-1]["step"] if metrics else 0


def metrics_so_far(run_folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the whole lines of metrics.jsonl while a run may be writing one."""
    try:
        text = (run_folder / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def metrics_of(run_folder: pathlib.Path) -> list[dict[str, Any]]:
    text = (run_folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def train_losses_of(run_folder: pathlib.Path) -> dict[int, float]:
    """Returns the training loss by step, from every line that has one."""
    rows = metrics_of(run_folder)
    return {row["step"]: row["train_loss"] for row in rows if "train_loss" in row}


def checkpoints_of(run_folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (run_folder / "checkpoints").glob("step-*"))
