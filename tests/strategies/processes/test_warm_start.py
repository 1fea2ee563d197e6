"""Checks that processes forked from a template behave as new programs do."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from strategies.processes.forked_process import ForkedProcess, Process
from strategies.processes.parent import LAUNCHER_PID
from strategies.processes.starter import ProcessStarter, Program, WarmStarter
from tests import processes

# A module that shows in which process it was imported.
PRELOAD = """
import os
imported_in = os.getpid()
def preload():
    pass
"""

# A module in whose process no other can be forked, or not from its children.
CANNOT_FORK = """
import errno, os
fork, template = os.fork, os.getpid()
def fail():
    if {condition}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
def preload():
    os.fork = fail
"""

# A program that prints all that it can find out about its process.
SHOW = """
import json, os, random, signal, sys, threading
import preloaded
OURS = ("KDS_FORKED", "KDS_TEMPLATE_FILE_KIB")
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0),
    "imported_here": preloaded.imported_in == os.getpid(),
    "arguments": sys.argv[1:], "folder": os.getcwd(), "first_path": sys.path[0],
    "name": __name__, "random": random.random(),
    "environment": {n: v for n, v in os.environ.items() if n not in OURS},
    "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "cores": sorted(os.sched_getaffinity(0)),
    "threads": threading.active_count(),
    "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "stdin": sys.stdin.read(), "buffering": sys.stdout.line_buffering,
    "streams": [repr(sys.stdout), repr(sys.stderr)],
}))
print("to standard error", file=sys.stderr)
"""

# A program that forks other programs from a template, as it was forked itself.
NESTED = """
import os, subprocess, sys, psutil
from strategies.processes.starter import Program, WarmStarter
print("text that waits in a buffer")
with WarmStarter("preloaded") as starter:
    environment = {n: v for n, v in os.environ.items() if n != "KDS_FORKED"}
    for _ in range(2):
        process = starter.start(Program(
            command=[sys.executable, "-m", "show", "inner"],
            environment=environment, stdout=None, stderr=subprocess.STDOUT,
        ))
        assert process.wait() == 0
    (template,) = psutil.Process().children()
    print(template.cmdline()[-1], psutil.Process().pid, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("programs")
    programs = {
        "preloaded": PRELOAD,
        "show": SHOW,
        "nested": NESTED,
        "is_killed": "import os, signal\nprint('printed')\nos.kill(os.getpid(), 9)",
        "ends": "import sys; sys.exit(eval(sys.argv[1]))",
        "fails": "raise ValueError('a reason')",
        "sleeps": (
            "import time\n"
            "from strategies.processes.parent import end_with_launcher\n"
            "end_with_launcher()\n"
            "print('ready', flush=True)\n"
            "time.sleep(600)"
        ),
    }
    for name, text in programs.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def warm(folder: pathlib.Path) -> Iterator[ProcessStarter]:
    with WarmStarter("preloaded") as starter:
        starter.prepare(environment_of(folder))
        yield starter


def test_a_process_whose_output_nobody_reads_is_forked(
    warm: ProcessStarter, folder: pathlib.Path
) -> None:
    process = warm.start(
        Program(
            command=[sys.executable, "-m", "ends", "3"],
            environment=environment_of(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            folder=str(folder),
        )
    )
    assert isinstance(process, ForkedProcess)
    assert process.wait() == 3


def test_a_template_can_be_begun_without_waiting_for_its_imports(
    folder: pathlib.Path,
) -> None:
    environment = environment_of(folder)
    with WarmStarter("preloaded") as starter:
        starter.begin(environment)
        begun = starter.template_pids()
        starter.prepare(environment)
        assert len(begun) == 1
        assert starter.template_pids() == begun


def environment_of(folder: pathlib.Path, **variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(folder), str(processes.ROOT)])
    return {**processes.environment(), "PYTHONPATH": path, **variables}


def program(folder: pathlib.Path, *words: str, **variables: str) -> Program:
    return Program(
        command=[sys.executable, "-m", *words],
        environment=environment_of(folder, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        folder=str(folder),
    )


def outputs_of(process: Process) -> tuple[int, str, str]:
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = process.stdout.read(), process.stderr.read()
        return process.wait(), stdout, stderr


def shown(starter: ProcessStarter, asked: Program) -> dict[str, Any]:
    code, stdout, stderr = outputs_of(starter.start(asked))
    assert code == 0, stderr
    assert stderr == "to standard error\n"
    return json.loads(stdout)


def test_a_forked_process_finds_what_a_new_program_finds(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    asked = program(folder, "show", "--flag", "a b", TF_CONFIG="{}", LINES="7")
    new, forked = shown(ProcessStarter(), asked), shown(warm, asked)
    assert new.pop("imported_here")
    assert not forked.pop("imported_here")
    for found in (new, forked):
        assert found["parent"] == os.getpid()
        assert found["session"] == found["pid"]
    for name in ("pid", "session", "random"):
        assert new.pop(name) != forked.pop(name), name
    assert forked == new


@pytest.mark.parametrize(("unbuffered", "printed"), [("", ""), ("1", "printed\n")])
def test_a_forked_process_prints_as_early_as_a_new_one(
    unbuffered: str, printed: str, folder: pathlib.Path
) -> None:
    asked = program(folder, "is_killed", PYTHONUNBUFFERED=unbuffered)
    with WarmStarter("preloaded") as warm:
        for starter in (ProcessStarter(), warm):
            found = outputs_of(starter.start(asked))
            assert found == (-signal.SIGKILL, printed, "")


def test_two_forked_processes_draw_different_random_numbers(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    asked = program(folder, "show")
    assert shown(warm, asked)["random"] != shown(warm, asked)["random"]


def test_a_forked_process_uses_the_given_cores(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    first = min(os.sched_getaffinity(0))
    for starter in (ProcessStarter(), warm):
        process = starter.start(
            Program(
                command=[sys.executable, "-m", "sleeps"],
                environment=environment_of(folder),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cores=[first],
            )
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert os.sched_getaffinity(process.pid) == {first}
            process.kill()


@pytest.mark.parametrize("code", [0, 2, 75, "None", "'words'"])
def test_the_exit_code_is_that_of_the_program(
    code: object, folder: pathlib.Path, warm: ProcessStarter
) -> None:
    asked = program(folder, "ends", str(code))
    assert outputs_of(warm.start(asked)) == outputs_of(ProcessStarter().start(asked))


def test_an_error_is_shown_and_ends_the_process(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    code, _, stderr = outputs_of(warm.start(program(folder, "fails")))
    assert code == 1
    assert stderr.endswith("ValueError: a reason\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_a_forked_process_as_a_new_one(
    number: signal.Signals, folder: pathlib.Path, warm: ProcessStarter
) -> None:
    codes = []
    for starter in (ProcessStarter(), warm):
        with starter.start(program(folder, "sleeps")) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
            process.send_signal(number)
            codes.append(process.wait(processes.PATIENCE_SECONDS))
            # A signal to a process that has ended raises no error.
            process.send_signal(number)
    assert codes == [-number, -number]


def test_a_signal_handler_may_ask_for_the_end_at_any_time() -> None:
    """The launcher asks all the time, and so does its handler of SIGTERM."""
    command = ["sleep", "60"]
    with subprocess.Popen(command) as started:
        process = ForkedProcess(command, started.pid)
        before = signal.signal(signal.SIGALRM, lambda *_: process.send_signal(0))
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        try:
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                assert process.poll() is None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            process.kill()
        assert process.wait() == -signal.SIGKILL
        started.returncode = process.returncode


def test_others_see_the_command_and_the_variables_of_a_forked_process(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    asked = program(folder, "sleeps", "--an", "argument", TF_CONFIG='{"task": 1}')
    with warm.start(asked) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        seen = psutil.Process(process.pid)
        assert seen.cmdline() == list(asked.command)
        assert seen.environ().items() >= asked.environment.items()
        process.kill()


def test_one_template_serves_what_differs_in_no_variable_of_an_import(
    folder: pathlib.Path,
) -> None:
    with WarmStarter("preloaded") as starter:
        for variables in ({}, {"TF_CONFIG": "{}", LAUNCHER_PID: str(os.getpid())}):
            found = shown(starter, program(folder, "show", **variables))
            assert not found["imported_here"]
        assert len(starter.template_pids()) == 1
        found = shown(starter, program(folder, "show", TF_CPP_MIN_LOG_LEVEL="3"))
        assert not found["imported_here"]
        assert len(starter.template_pids()) == 2
        templates = [psutil.Process(pid) for pid in starter.template_pids()]
    assert not any(template.is_running() for template in templates)


@pytest.mark.parametrize("when", ["before", "between"])
def test_without_its_template_a_process_is_started_as_a_program(
    when: str, folder: pathlib.Path
) -> None:
    with WarmStarter("preloaded" if when == "between" else "no_such_module") as starter:
        if when == "between":
            shown(starter, program(folder, "show"))
            (pid,) = starter.template_pids()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        assert shown(starter, program(folder, "show"))["imported_here"]


# A module whose process is killed as soon as it has forked another.
IS_KILLED_THEN = """
import os, signal
waitpid = os.waitpid
def die(*arguments):
    waitpid(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
def preload():
    os.waitpid = die
"""


def test_a_process_is_started_once_if_its_template_is_killed_meanwhile(
    folder: pathlib.Path,
) -> None:
    (folder / "is_killed_then.py").write_text(IS_KILLED_THEN, encoding="utf-8")
    before = set(psutil.Process().children())
    with WarmStarter("is_killed_then") as starter:
        assert shown(starter, program(folder, "show"))["imported_here"]
    # The forked one ends; this process may have become its parent.
    for child in set(psutil.Process().children()) - before:
        os.waitpid(child.pid, 0)


@pytest.mark.parametrize("condition", ["True", "os.getpid() != template"])
def test_a_template_that_cannot_fork_says_so_and_goes_on(
    condition: str, folder: pathlib.Path
) -> None:
    """Starts a program in its place, which fails as well at a limit of processes."""
    module = CANNOT_FORK.format(condition=condition)
    (folder / "cannot_fork.py").write_text(module, encoding="utf-8")
    with WarmStarter("cannot_fork") as starter:
        for _ in range(2):
            assert shown(starter, program(folder, "show"))["imported_here"]
        (pid,) = starter.template_pids()
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_another_command_is_started_as_a_program(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    asked = Program(
        command=["echo", "said"],
        environment=environment_of(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert outputs_of(warm.start(asked)) == (0, "said\n", "")


def test_a_forked_process_forks_its_own_template(
    folder: pathlib.Path, warm: ProcessStarter
) -> None:
    code, stdout, stderr = outputs_of(warm.start(program(folder, "nested")))
    assert code == 0, stderr
    assert stdout.count("text that waits in a buffer") == 1
    inner = [json.loads(line) for line in stdout.splitlines() if line[0] == "{"]
    template, pid = stdout.splitlines()[-1].split()
    # The title shows that this template is a new program, and no fork of this process.
    assert template == "strategies.processes.template_process"
    assert [found["imported_here"] for found in inner] == [False, False]
    assert [found["parent"] for found in inner] == [int(pid)] * 2
    assert [found["threads"] for found in inner] == [1, 1]


def test_nothing_survives_the_process_that_asked(folder: pathlib.Path) -> None:
    with processes_of_a_killed_parent(folder) as (parent, others):
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(others, timeout=processes.PATIENCE_SECONDS)
        assert alive == []


@contextlib.contextmanager
def processes_of_a_killed_parent(
    folder: pathlib.Path,
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    words = f"""
import os, subprocess, sys
from strategies.processes.starter import Program, WarmStarter
starter = WarmStarter("preloaded")
environment = dict(os.environ, {LAUNCHER_PID}=str(os.getpid()))
for _ in range(2):
    starter.start(Program(
        command=[sys.executable, "-m", "sleeps"], environment=environment,
        stdout=None, stderr=subprocess.STDOUT,
    ))
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", words],
        env=environment_of(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            family = psutil.Process(parent.pid)
            # These are the template and two forked processes. The process that forks
            # each of them ends at once.
            wait_until(lambda: len(family.children(recursive=True)) == 3)
            yield parent, family.children(recursive=True)
        finally:
            parent.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + processes.PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
