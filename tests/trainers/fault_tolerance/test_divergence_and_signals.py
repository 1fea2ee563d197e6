"""Training that ends before its last step, in real processes."""

import os
import pathlib
import signal
import sys
import time
from unittest import mock

import numpy as np
import psutil
import pytest

from strategies.common.errors import ExitCode, StopRequested
from strategies.common.types import StepResults, SyncedFlags
from strategies.processes.forked_process import Process
from tests import processes
from tests.markers import further
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.loop.loop import StepEvent
from trainers.main import main

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGTERM, signal.SIGINT)

# Some two seconds of training, in calls so short that a signal is soon seen to.
FLAGS = (
    "--model=mlp",
    "--hidden_units=16",
    "--dropout=0.3",
    "--train_steps=2000",
    "--steps_per_loop=5",
    "--summary_every_steps=20",
    "--set=report.histogram_every_steps=none",
    "--checkpoint_every_steps=none",
    "--eval_every_steps=none",
    # A compilation takes longer than these steps.
    "--jit_compile=off",
)

# Every step doubles the weights and turns their sign: w - 1 * 3 * w = -2 w. After
# some forty steps the loss is beyond float32.
DIVERGING = (
    "--model=mlp",
    "--hidden_units=16",
    "--optimizer=sgd",
    "--learning_rate=1",
    "--weight_decay=3",
    "--train_steps=200",
    "--checkpoint_every_steps=10",
    "--jit_compile=off",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the folder of an undisturbed run, to compare the others with."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    finished = processes.run(*FLAGS, f"--run_dir={path}", folder=path.parent)
    assert finished.returncode == 0, finished.stderr
    return path


def assert_continues_like(run: pathlib.Path, undisturbed: pathlib.Path) -> None:
    """Resumes a run, and compares all of it with the undisturbed run."""
    resumed = processes.run(
        *FLAGS, f"--run_dir={run}", "--resume=auto", folder=run.parent
    )
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr == ""
    result, expected = processes.result_of(run), processes.result_of(undisturbed)
    for key in ("status", "steps", "weights_sha256", "initial_weights_sha256"):
        assert result[key] == expected[key]
    assert result["final"]["eval_loss"] == expected["final"]["eval_loss"]
    # The same losses are added up, but in other parts: rounding differs.
    assert processes.train_losses_of(run) == pytest.approx(
        processes.train_losses_of(undisturbed), rel=1e-12
    )


# Divergence


def test_divergence_names_the_step_and_keeps_the_checkpoints_before_it(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    diverged = processes.run(*DIVERGING, f"--run_dir={run}", folder=tmp_path)
    assert diverged.returncode == 3
    (line,) = diverged.stderr.splitlines()
    result = processes.result_of(run)
    assert result["status"] == "diverged"
    steps = result["steps"]
    assert 20 < steps < 60, "not where float32 ends"
    assert f"step {steps + 1}: " in line
    assert "--learning_rate" in line

    last = steps // 10 * 10
    assert processes.checkpoints_of(run)[-1] == f"step-{last:08d}"
    before = processes.contents(run)
    assert main(["main", "--mode=evaluate", f"--run_dir={run}"]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    assert f"step {last} " in captured.out
    assert processes.contents(run) == before

    again = processes.run(
        *DIVERGING, f"--run_dir={run}", "--resume=auto", folder=tmp_path
    )
    assert again.returncode == 3
    assert again.stderr == diverged.stderr
    assert f"continued at step {last}" in again.stdout
    assert processes.result_of(run)["weights_sha256"] == result["weights_sha256"]


# The test before has a line and a checkpoint, and test_rollback.py diverges at once.
@pytest.mark.exhaustive
def test_divergence_at_once_is_one_line_and_leaves_finite_weights(
    tmp_path: pathlib.Path,
) -> None:
    run = tmp_path / "run"
    diverged = processes.run(
        *("--model=mlp", "--optimizer=sgd", "--learning_rate=1e30"),
        *("--checkpoint_every_steps=1", "--train_steps=50", f"--run_dir={run}"),
        folder=tmp_path,
    )
    assert diverged.returncode == 3
    (line,) = diverged.stderr.splitlines()
    assert "step 2: " in line
    assert "nan" in line
    assert processes.result_of(run)["status"] == "diverged"
    assert processes.result_of(run)["steps"] == 1
    assert processes.checkpoints_of(run) == ["step-00000001"]


# Signals while training


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), further(signal.SIGINT, 130)]
)
def test_a_signal_ends_training_with_a_checkpoint_that_loses_nothing(
    tmp_path: pathlib.Path, undisturbed: pathlib.Path, number: int, exit_code: int
) -> None:
    run = tmp_path / "run"
    with processes.started(*FLAGS, f"--run_dir={run}", folder=tmp_path) as process:
        processes.wait_until(
            lambda: processes.last_step_of(run) > 0, "its first metrics", process
        )
        process.send_signal(number)
        ended = processes.end_of(process)
    assert ended.returncode == exit_code
    assert ended.stderr == ""
    result = processes.result_of(run)
    assert result["status"] == "preempted"
    assert 0 < result["steps"] < 2000
    assert processes.checkpoints_of(run) == [f"step-{result['steps']:08d}"]
    assert_continues_like(run, undisturbed)


@pytest.mark.exhaustive
def test_asynchronous_towers_end_on_a_signal_and_go_on_to_the_last_step(
    tmp_path: pathlib.Path,
) -> None:
    """Towers share the work differently each time; its amount is the same."""
    run = tmp_path / "run"
    flags = (*FLAGS, "--strategy=tower", "--update=async", f"--run_dir={run}")
    with processes.started(*flags, folder=tmp_path) as process:
        processes.wait_until(
            lambda: processes.last_step_of(run) > 0, "its first metrics", process
        )
        process.send_signal(signal.SIGTERM)
        ended = processes.end_of(process)
    assert (ended.returncode, ended.stderr) == (143, "")
    steps = processes.result_of(run)["steps"]
    assert 0 < steps < 2000
    assert processes.checkpoints_of(run) == [f"step-{steps:08d}"]
    assert main(["main", *flags, "--resume=auto"]) == 0
    result = processes.result_of(run)
    assert (result["status"], result["steps"]) == ("completed", 2000)
    assert result["attempted_steps"] == 2000
    assert sum(result["staleness"]["histogram"].values()) == 2000 - steps


# Takes so long to save that there is time for a second signal.
_SLOW = """
import sys, time
from trainers.run_dir.checkpoints import Checkpoints

def save(self, state):
    print("saving", flush=True)
    time.sleep(3600)

Checkpoints.save = save
from trainers.main import main
sys.exit(main(["main", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_a_second_signal_ends_the_process_at_once(
    tmp_path: pathlib.Path, number: int, exit_code: int
) -> None:
    run = tmp_path / "run"
    (tmp_path / "slow.py").write_text(_SLOW)
    slow = [sys.executable, "-m", "slow"]
    with processes.started(
        *FLAGS, f"--run_dir={run}", folder=tmp_path, begin=slow
    ) as process:
        processes.wait_until(
            lambda: processes.last_step_of(run) > 0, "its first metrics", process
        )
        process.send_signal(number)
        assert process.stdout is not None
        while process.stdout.readline() != "saving\n":
            assert process.poll() is None
        process.send_signal(number)
        ended = processes.end_of(process)
    assert ended.returncode == exit_code
    assert "Traceback" not in ended.stderr
    assert processes.checkpoints_of(run) == []


# Signals before and after


def is_loading_tensorflow(process: Process) -> bool:
    """Python takes 20 MiB, TensorFlow ten times as much."""
    return psutil.Process(process.pid).memory_info().rss > 60 << 20


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_tensorflow_loads_ends_at_once_and_leaves_nothing(
    tmp_path: pathlib.Path, number: int
) -> None:
    # Another command than the program itself: that would be forked with TensorFlow.
    begin = ["env", *processes.command()]
    flags = (*FLAGS, f"--run_dir={tmp_path / 'run'}")
    with processes.started(*flags, folder=tmp_path, begin=begin) as process:
        processes.wait_until(
            lambda: is_loading_tensorflow(process), "TensorFlow", process
        )
        process.send_signal(number)
        ended = processes.end_of(process)
    # As the signal does by itself; a shell makes 143 and 130 of it.
    assert ended.returncode == -number
    assert ended.stderr == ""
    assert processes.contents(tmp_path) == {}


def test_an_interrupt_while_modules_are_imported_is_one_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The first import in `main` takes a tenth of a second.
    with mock.patch("importlib.import_module", side_effect=KeyboardInterrupt):
        assert main(["train"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, further(signal.SIGINT)])
def test_a_signal_before_the_first_step_leaves_a_folder_that_can_be_used_again(
    tmp_path: pathlib.Path, undisturbed: pathlib.Path, number: int
) -> None:
    run = tmp_path / "run"
    with processes.started(*FLAGS, f"--run_dir={run}", folder=tmp_path) as process:
        processes.wait_until((run / "config.json").exists, "its configuration", process)
        process.send_signal(number)
        ended = processes.end_of(process)
    # The loop, which takes signals over, may have begun already.
    by_itself = (
        ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED
    )
    assert ended.returncode in (-number, by_itself)
    assert "Traceback" not in ended.stderr
    if number == signal.SIGTERM:
        assert_continues_like(run, undisturbed)


# Signals that the process was started to ignore


def test_an_interrupt_that_was_ignored_from_the_start_stays_ignored(
    tmp_path: pathlib.Path,
) -> None:
    """A shell starts background jobs so: its Ctrl-C is for another program."""
    run = tmp_path / "run"
    begin = [*processes.ignoring(signal.SIGINT, signal.SIGHUP), *processes.command()]
    flags = (*FLAGS, "--train_steps=1000000", f"--run_dir={run}")
    with processes.started(*flags, folder=tmp_path, begin=begin) as process:
        for number in (signal.SIGINT, signal.SIGHUP):
            wait_for_a_step(run, process)
            process.send_signal(number)
            process.send_signal(number)
        wait_for_a_step(run, process)
        process.terminate()
        ended = processes.end_of(process)
    assert (ended.returncode, ended.stderr) == (143, "")
    assert processes.result_of(run)["status"] == "preempted"


def wait_for_a_step(run: pathlib.Path, process: Process) -> None:
    step = processes.last_step_of(run)
    processes.wait_until(
        lambda: processes.last_step_of(run) > step, "another step", process
    )


_STARTS_ANOTHER = """
import os, signal, subprocess, sys
from tests import processes
processes.give_children_default_signals()
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    os.kill(os.getpid(), number)
shown = "import signal; print([int(n) for n in signal.valid_signals() if "
shown += "signal.getsignal(n) is signal.SIG_IGN], signal.pthread_sigmask(0, []))"
print(subprocess.check_output([sys.executable, "-c", shown], text=True), end="")
"""


def test_processes_of_tests_begin_with_default_signals() -> None:
    """They do although the process of the tests ignores signals, and still does."""
    started = processes.run_words([sys.executable, "-c", _STARTS_ANOTHER])
    assert started.returncode == -signal.SIGINT, "nothing is ignored here"
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)
    ignoring = [*processes.ignoring(*numbers), sys.executable, "-c", _STARTS_ANOTHER]
    # Python ignores SIGPIPE and SIGXFSZ in every process.
    ours = sorted((int(signal.SIGPIPE), int(signal.SIGXFSZ)))
    done = processes.run_words(ignoring)
    assert done.stdout == f"{ours} set()\n", done.stderr


_STARTS_A_PROCESS = """
import os, subprocess, sys

def test() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert b"KeyboardInterrupt" in done.stderr
    assert not {"TF_CONFIG", "KERAS_BACKEND", "COLUMNS"} & set(os.environ)
"""


@pytest.mark.exhaustive
def test_tests_depend_on_nothing_that_they_inherit(tmp_path: pathlib.Path) -> None:
    """Pytest itself, in a process that ignores interrupts, as in the background."""
    test = tmp_path / "test_one.py"
    test.write_text(_STARTS_A_PROCESS, encoding="utf-8")
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    words = [*pytest_, "-p", "tests.conftest", str(test)]
    done = processes.run_words(
        [*processes.ignoring(signal.SIGINT), *words],
        TF_CONFIG="{}",
        KERAS_BACKEND="jax",
        COLUMNS="40",
    )
    assert done.returncode == 0, done.stdout[-3000:]


# PreemptionSignals by itself


def report(signals: PreemptionSignals, is_last: bool = False) -> StepEvent:
    """Returns a step that carried the flags which this one process proposed."""
    results = StepResults(
        applied_steps=1,
        sums={},
        step_seconds=np.zeros(1),
        input_seconds=np.zeros(1),
        details={},
        attempted_steps=1,
        agreed=SyncedFlags(stop_requested=float(signals.requested)),
    )
    return StepEvent(
        step=1, last_step=1 if is_last else 2, results=results, call_seconds=0.0
    )


@pytest.mark.parametrize("number", SIGNALS)
def test_the_signals_are_taken_over_and_given_back(number: int) -> None:
    before = signal.getsignal(number)
    with PreemptionSignals():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_waits_for_a_step_and_gives_the_next_one_back(
    number: int,
) -> None:
    before = [signal.getsignal(n) for n in SIGNALS]
    with PreemptionSignals() as signals:
        signals(report(signals))
        os.kill(os.getpid(), number)
        assert [signal.getsignal(n) for n in SIGNALS] == before
        with pytest.raises(StopRequested) as raised:
            signals(report(signals))
    assert raised.value.exit_code == 128 + number
    assert [signal.getsignal(n) for n in SIGNALS] == before


def test_a_signal_within_a_call_stops_a_process_that_stops_alone() -> None:
    with PreemptionSignals() as signals:
        of_the_call = report(signals)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            signals(of_the_call)


def test_processes_that_stop_together_learn_of_a_signal_with_the_next_call() -> None:
    with PreemptionSignals(stops_together=True) as signals:
        of_the_call = report(signals)
        os.kill(os.getpid(), signal.SIGTERM)
        signals(of_the_call)
        with pytest.raises(StopRequested):
            signals(report(signals))


# Python 3.12 warns of threads, such as TensorFlow's.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_signal_ends_a_process_that_was_forked() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with PreemptionSignals():
        child = os.fork()
        if not child:
            time.sleep(10)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_an_interrupt_that_is_ignored_is_not_taken_over() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with PreemptionSignals() as signals:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
            assert not signals.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_in_the_last_step_lets_the_run_complete() -> None:
    with PreemptionSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        last = report(signals, is_last=True)
        assert last.results.agreed.stop_requested
        signals(last)
    assert last.is_last, "any other step raises StopRequested"
