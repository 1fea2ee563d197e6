"""Tests of how every task of a cluster ends when a scheduler started each."""

import contextlib
import json
import pathlib
import signal
import socket
import time

import psutil
import pytest
from jsonschema import validate

from tests import processes
from tests.cluster.tasks import Tasks, cluster
from tests.event_files import read_events
from tests.markers import chosen, further
from tests.processes import ROOT

pytestmark = pytest.mark.cluster

NUM_TASKS = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
}
STRATEGIES = tuple(NUM_TASKS)
# Numbers of tasks where one worker of parameter servers is enough.
FEWEST = {"multi_worker_mirrored": {}, "parameter_server": {"worker": 1}}
CHIEFS = {"multi_worker_mirrored": "worker-0", "parameter_server": "chief-0"}
SMALL = ("--model=mlp", "--hidden_units=8")
# A picture of weights and an evaluation at steps are not the subject of these tests.
QUIET = (*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none")
LONG = (
    *SMALL,
    *QUIET,
    "--train_steps=1000000",
    "--checkpoint_every_steps=50",
    # The delay leaves most of the processor to other tests.
    "--set=length.step_delay_milliseconds=10",
)
LOST, TERMINATED, INTERRUPTED = 138, 143, 130


@contextlib.contextmanager
def started(folder, strategy, *flags, absent=(), **more):
    num_tasks = {**NUM_TASKS[strategy], **more}
    with cluster(
        folder, num_tasks, f"--strategy={strategy}", *flags, absent=absent
    ) as tasks:
        yield tasks


def all_of(tasks: Tasks, code: int) -> dict[str, int]:
    return dict.fromkeys(tasks.started, code)


def result_of(tasks: Tasks) -> dict:
    result = json.loads((tasks.run_dir / "result.json").read_text(encoding="utf-8"))
    validate(result, json.loads((ROOT / "docs/result.schema.json").read_text()))
    return result


# Tasks that do not start, of two clusters that run at the same time: their deadlines
# pass together.
MISSING = {
    "multi_worker_mirrored": (("worker-0",), ("worker-1",)),
    "parameter_server": (("chief-0",), ("ps-0", "worker-1")),
}


@pytest.mark.parametrize("strategy", chosen(STRATEGIES, ["parameter_server"]))
def test_tasks_that_do_not_start_are_named_by_all_others(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    # The deadline lets all other tasks start on a busy machine; otherwise the message
    # would name these too. They start by fork and do not load TensorFlow before: five
    # tasks take a second of a core.
    flags = (*SMALL, "--set=strategy.startup_timeout_seconds=8")
    with contextlib.ExitStack() as stack:
        clusters = []
        for missing in MISSING[strategy]:
            folder = tmp_path / "-".join(missing)
            folder.mkdir()
            tasks = started(folder, strategy, *flags, absent=missing)
            clusters.append((missing, stack.enter_context(tasks)))
        for missing, tasks in clusters:
            assert tasks.exit_codes() == all_of(tasks, LOST)
            named = ", ".join(f"{name} at {tasks.address(name)}" for name in missing)
            for name, (line,) in tasks.error_lines().items():
                start, _, end = line.partition(" s: ")
                assert start == "error: the cluster did not assemble within 8", name
                assert sorted(end.partition(" did not start")[0].split(", ")) == (
                    sorted(named.split(", "))
                ), name
            assert not tasks.run_dir.exists()


@pytest.mark.parametrize(
    ("strategy", "task"),
    [
        ("multi_worker_mirrored", "worker-1"),
        ("parameter_server", "chief-0"),
        ("parameter_server", "ps-0"),
    ],
)
def test_an_address_that_is_taken_is_named_at_once(
    strategy: str, task: str, tmp_path: pathlib.Path
) -> None:
    everything = ("worker-0", "worker-1", "chief-0", "ps-0")
    with started(tmp_path, strategy, *SMALL, absent=everything) as tasks:
        host, _, port = tasks.address(task).rpartition(":")
        with socket.create_server((host, int(port))):
            assert tasks.start(task).exit_code() == 2
        (line,) = tasks.started[task].error_lines()
        assert line.startswith(f"error: the address {tasks.address(task)} of {task} ")
        assert "in use" in line
        assert not tasks.run_dir.exists()


COMPLETED = (
    *SMALL,
    "--set=report.histogram_every_steps=none",
    "--train_steps=60",
    "--eval_every_steps=20",
    "--checkpoint_every_steps=20",
)


def assert_completed_and_evaluated(tasks: Tasks, num_replicas: int) -> None:
    """Asserts that all end with 0, and that the evaluator evaluated every checkpoint.

    No task waits for the evaluator.
    """
    assert tasks.exit_codes() == all_of(tasks, 0)
    assert tasks.error_lines() == {name: [] for name in tasks.started}
    result = result_of(tasks)
    assert result["status"] == "completed"
    assert result["num_replicas"] == num_replicas
    by_chief = read_events(tasks.run_dir / "tb" / "eval")
    by_evaluator = read_events(tasks.run_dir / "tb" / "evaluator")
    pictures = {"confusion_matrix"}
    assert set(by_evaluator.points) == {"loss", "accuracy"} | pictures
    for tag in set(by_evaluator.points) - pictures:
        values = by_evaluator.scalars(tag)
        assert set(values) == {20, 40, 60}
        # The sums are in another order, in float32.
        assert values == pytest.approx(by_chief.scalars(tag), rel=1e-5)
    output = tasks.started["evaluator-0"].output_lines()
    assert [line.split("|")[1].split() for line in output] == [
        ["step", str(step)] for step in (20, 40, 60)
    ]
    assert not list(tasks.run_dir.glob("logs/*.ending"))


@pytest.mark.parametrize(
    ("num_workers", "update"),
    [
        (1, ("--update=async",)),
        further(2, ("--update=sync", "--backup_workers=1")),
    ],
)
def test_every_task_of_a_completed_run_of_servers_ends_with_0(
    num_workers: int, update: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    more = {"worker": num_workers, "evaluator": 1}
    with started(tmp_path, "parameter_server", *COMPLETED, *update, **more) as tasks:
        assert_completed_and_evaluated(tasks, num_workers)


@pytest.mark.parametrize("jobs", [{"chief": 1, "worker": 1}, further({"worker": 2})])
def test_every_task_of_a_completed_run_and_of_its_resumption_ends_with_0(
    jobs: dict[str, int], tmp_path: pathlib.Path
) -> None:
    """A job called chief trains with the workers.

    Only the chief can know at the second start that no step is left.
    """
    strategy = "multi_worker_mirrored"
    with started(tmp_path, strategy, *COMPLETED, **jobs, evaluator=1) as tasks:
        assert_completed_and_evaluated(tasks, num_replicas=2)
        (devices,) = read_events(tasks.run_dir / "tb" / "train").points["devices"]
    for job, count in jobs.items():
        for index in range(count):
            assert f"/job:{job}/task:{index}/device:" in str(devices.value)
    with started(tmp_path, strategy, *COMPLETED, "--resume=auto", **jobs) as tasks:
        assert tasks.exit_codes() == all_of(tasks, 0)
        assert tasks.error_lines() == {name: [] for name in tasks.started}
        output = {name: t.output_lines() for name, t in tasks.started.items()}
    chief = output.pop(f"{next(iter(jobs))}-0")
    assert "is complete at step 60" in " ".join(chief)
    assert [*output.values()] == [[]]


@pytest.mark.parametrize("strategy", chosen(STRATEGIES, ["multi_worker_mirrored"]))
def test_every_task_of_a_diverged_run_ends_with_3(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    # The first step exceeds the largest number of float32 with any gradient.
    flags = (*SMALL, "--optimizer=sgd", "--learning_rate=1e38", "--weight_decay=1e38")
    with started(tmp_path, strategy, *flags, **FEWEST[strategy]) as tasks:
        assert tasks.exit_codes() == all_of(tasks, 3)
        errors = tasks.error_lines()
        (line,) = errors.pop(CHIEFS[strategy])
        assert "training has diverged" in line
        assert set(map(tuple, errors.values())) == {()}
        assert result_of(tasks)["status"] == "diverged"


# A task finds the first fault before it meets others, and the second in training.
@pytest.mark.parametrize("wrong", ["--learning_rate=-1", "--global_batch_size=1"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_task_of_a_bad_request_ends_with_2(
    strategy: str, wrong: str, tmp_path: pathlib.Path
) -> None:
    # Asynchronous workers take whole batches, for which one example is enough.
    update = ("--update=sync",) if strategy == "parameter_server" else ()
    flags = (*SMALL, *update, wrong)
    more = FEWEST[strategy] if "learning_rate" in wrong else {}
    with started(tmp_path, strategy, *flags, **more) as tasks:
        assert tasks.exit_codes() == all_of(tasks, 2)
        (line,) = tasks.error_lines()[CHIEFS[strategy]]
        assert line.startswith("error: ")
        assert wrong.removesuffix("=1").removesuffix("=-1") in line
        assert not tasks.run_dir.exists()


_WRONG_CALLBACK = """
import keras

class Wrong(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise ValueError("wrong")

def made():
    return [Wrong()]
"""


@pytest.mark.parametrize(
    "strategy", ["parameter_server", further("multi_worker_mirrored")]
)
def test_a_run_that_ends_by_its_callback_ends_with_2(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    """A worker in a step sees only that the chief is gone."""
    (tmp_path / "wrong.py").write_text(_WRONG_CALLBACK)
    flags = (*SMALL, "--callbacks=wrong.py:made", "--epochs=3")
    more = {**FEWEST[strategy], "evaluator": 1}
    with started(tmp_path, strategy, *flags, **more) as tasks:
        in_step = {"worker-1": LOST} if strategy == "multi_worker_mirrored" else {}
        assert tasks.exit_codes() == {**all_of(tasks, 2), **in_step}
        errors = tasks.error_lines()
        (line,) = errors.pop(CHIEFS[strategy])
        assert "ValueError" in line
        assert errors["evaluator-0"] == []


def test_a_refused_second_command_ends_no_task_of_the_first(
    tmp_path: pathlib.Path,
) -> None:
    """A signal to all tasks does, as a scheduler sends it, after a checkpoint.

    The name of the folder has braces, which `str.format` would replace.
    """
    folder = tmp_path / "of {user}"
    folder.mkdir()
    with started(folder, "parameter_server", *LONG, worker=1) as tasks:
        tasks.wait_for_checkpoint()
        second = processes.run(
            *("--strategy=parameter_server", "--num_workers=1", "--num_ps=1", *LONG),
            *(f"--run_dir={tasks.run_dir}", "--resume=auto"),
        )
        assert second.returncode == 2, second.stderr
        assert "another process" in second.stderr
        newest = max((tasks.run_dir / "checkpoints").glob("step-*"))
        tasks.wait_until(
            lambda: max((tasks.run_dir / "checkpoints").glob("step-*")) > newest,
            "another checkpoint",
        )
        for task in tasks.started.values():
            task.send(signal.SIGTERM)
        assert_preempted(tasks, TERMINATED)
        assert not list(tasks.run_dir.glob("logs/*.ending"))


def assert_preempted(tasks: Tasks, code: int) -> None:
    """Asserts that all tasks end with a code, after a checkpoint of the last step."""
    assert tasks.exit_codes() == all_of(tasks, code)
    assert set(map(tuple, tasks.error_lines().values())) == {()}
    result = result_of(tasks)
    assert result["status"] == "preempted"
    newest = max((tasks.run_dir / "checkpoints").glob("step-*"))
    assert newest.name == f"step-{result['steps']:08d}"


# A scheduler sends the signal to all tasks; then parameter servers wait for the chief's
# checkpoint. A signal to one task that trains is enough.
@pytest.mark.parametrize(
    ("strategy", "number", "receivers", "code"),
    [
        ("multi_worker_mirrored", signal.SIGTERM, ("worker-1",), TERMINATED),
        pytest.param(
            *("multi_worker_mirrored", signal.SIGINT),
            *(("worker-0", "worker-1"), INTERRUPTED),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("parameter_server", signal.SIGINT, ("chief-0",), INTERRUPTED),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("parameter_server", signal.SIGTERM),
            *(("chief-0", "worker-0", "worker-1", "ps-0"), TERMINATED),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_signal_ends_every_task_after_a_checkpoint(
    strategy: str,
    number: signal.Signals,
    receivers: tuple[str, ...],
    code: int,
    tmp_path: pathlib.Path,
) -> None:
    with started(tmp_path, strategy, *LONG) as tasks:
        tasks.wait_for_checkpoint()
        for name in receivers:
            tasks.started[name].send(number)
        assert_preempted(tasks, code)


@pytest.mark.parametrize(
    "strategy", ["multi_worker_mirrored", further("parameter_server")]
)
def test_signals_that_are_ignored_from_the_start_change_nothing(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    """No task gets an interrupt, and the launcher learns how its tasks end.

    A launcher in the background ignores interrupts, during start-up and during steps.
    The end of a child is lost to a process that ignores SIGCHLD.
    """
    run = tmp_path / "run"
    ignoring = processes.ignoring(signal.SIGINT, signal.SIGCHLD)
    flags = (
        *(*LONG, "--train_steps=100", "--checkpoint_every_steps=20", "--num_workers=1"),
        *(f"--strategy={strategy}", f"--run_dir={run}"),
    )
    with processes.started(
        *flags, folder=tmp_path, begin=[*ignoring, *processes.command()]
    ) as launcher:
        processes.wait_until(
            lambda: bool(processes.tasks_of(launcher.pid)), "tasks", launcher
        )

        def interrupted_with_a_checkpoint() -> bool:
            for process in psutil.Process(launcher.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGINT)
            launcher.send_signal(signal.SIGINT)
            time.sleep(0.1)
            return len(processes.checkpoints_of(run)) > 1

        processes.wait_until(interrupted_with_a_checkpoint, "checkpoints", launcher)
        ended = processes.end_of(launcher)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert processes.result_of(run)["status"] == "completed"


@pytest.mark.parametrize(
    ("strategy", "lost"),
    [
        ("multi_worker_mirrored", "worker-0"),
        further("multi_worker_mirrored", "worker-1"),
        ("parameter_server", "chief-0"),
        further("parameter_server", "ps-0"),
    ],
)
def test_the_others_name_a_task_that_was_lost(
    strategy: str, lost: str, tmp_path: pathlib.Path
) -> None:
    chief = CHIEFS[strategy]
    evaluators = {"evaluator": 1} if lost == chief else {}
    with started(tmp_path, strategy, *LONG, **FEWEST[strategy], **evaluators) as tasks:
        tasks.wait_for_checkpoint()
        tasks.started[lost].send(signal.SIGKILL)
        codes = tasks.exit_codes()
        assert codes.pop(lost) == -signal.SIGKILL
        assert codes == dict.fromkeys(codes, LOST)
        for name, lines in tasks.error_lines().items():
            # Tasks that depend on the chief alone name the chief.
            trains = strategy == "multi_worker_mirrored" and name != "evaluator-0"
            seen = lost if trains or name == chief else chief
            if name != lost:
                (line,) = lines
                assert line.startswith(
                    f"error: {seen} at {tasks.address(seen)} was lost: "
                )
        # Without the weights no task can write a result.
        if strategy == "multi_worker_mirrored" and lost != chief:
            assert result_of(tasks)["status"] == "failed"
        else:
            assert not (tasks.run_dir / "result.json").exists()


# The others wait for the chief, whose own code runs. They cannot catch its loss.
_BETWEEN_FITS = """
import os, signal
import keras
import numpy as np

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(np.ones((4, 4)), np.ones(4), verbose=0)
    os.kill(os.getpid(), signal.SIGKILL)
except Exception as error:
    print("caught", error)
"""


def test_a_chief_that_was_lost_between_two_fits_is_named(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "train.py").write_text(_BETWEEN_FITS)
    flags = f"--script={tmp_path / 'train.py'}"
    with started(tmp_path, "multi_worker_mirrored", flags) as tasks:
        assert tasks.exit_codes() == {"worker-0": -signal.SIGKILL, "worker-1": LOST}
        (line,) = tasks.started["worker-1"].error_lines()
        address = tasks.address("worker-0")
        assert line.startswith(f"error: worker-0 at {address} was lost: ")
        assert "caught" not in " ".join(tasks.started["worker-1"].output_lines())


# The worker that test_separate_hosts.py cuts off finds its leader as silent.
@pytest.mark.exhaustive
def test_a_leader_that_stands_still_counts_as_lost(tmp_path: pathlib.Path) -> None:
    flags = (*LONG, "--set=strategy.peer_timeout_seconds=3")
    with started(tmp_path, "multi_worker_mirrored", *flags) as tasks:
        tasks.wait_for_checkpoint()
        tasks.started["worker-0"].send(signal.SIGSTOP)
        assert tasks.started["worker-1"].exit_code() == LOST
        (line,) = tasks.started["worker-1"].error_lines()
        assert f"worker-0 at {tasks.address('worker-0')} does not answer" in line


@pytest.mark.exhaustive
def test_the_run_goes_on_without_a_worker_of_parameter_servers(
    tmp_path: pathlib.Path,
) -> None:
    """SIGTERM ends the first worker with 143; the run ends once both are gone."""
    with started(
        tmp_path, "parameter_server", *LONG, "--set=strategy.peer_timeout_seconds=2"
    ) as tasks:
        tasks.wait_for_checkpoint()
        chief, worker = tasks.started["chief-0"], tasks.started["worker-1"]
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == TERMINATED
        steps = newest_step(tasks)
        deadline = time.monotonic() + 60
        while newest_step(tasks) < steps + 100:
            assert chief.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (line,) = chief.error_lines()
        address = tasks.address("worker-1")
        assert line == f"warning: worker-1 at {address} was lost; the others go on."
        tasks.started["worker-0"].send(signal.SIGKILL)
        assert chief.exit_code() == LOST
        assert tasks.started["ps-0"].exit_code() == LOST
        assert "worker-0 at" in chief.error_lines()[-1]
        assert len(chief.error_lines()) == 3
        assert result_of(tasks)["status"] == "failed"


def test_the_run_goes_on_without_a_worker_that_stands_still(
    tmp_path: pathlib.Path,
) -> None:
    """The run continues with the worker later, and ends while the worker is stopped.

    Checkpoints are frequent: when TensorFlow traced a function for each of them, the
    chief waited for the stopped worker for ever. The first evaluation and the first
    histogram still trace one (docs/reliability.md).
    """
    flags = (
        *LONG,
        "--checkpoint_every_steps=2",
        "--set=strategy.peer_timeout_seconds=3",
    )
    with started(tmp_path, "parameter_server", *flags) as tasks:
        tasks.wait_for_checkpoint()
        chief, worker = tasks.started["chief-0"], tasks.started["worker-1"]
        name = f"worker-1 at {tasks.address('worker-1')}"
        worker.send(signal.SIGSTOP)
        # Steps that began before it stopped may still be written.
        time.sleep(1)
        step = newest_step(tasks)
        tasks.wait_until(lambda: newest_step(tasks) > step + 20, "steps without it")
        # Twenty steps may take less time than a peer may be silent.
        tasks.wait_until(lambda: len(chief.error_lines()) == 1, "its loss")
        warning = f"warning: {name} does not answer; the others go on."
        assert chief.error_lines() == [warning]
        worker.send(signal.SIGCONT)
        tasks.wait_until(lambda: len(chief.error_lines()) == 2, "its return")
        assert chief.error_lines()[1] == f"warning: {name} is back."
        step = newest_step(tasks)
        tasks.wait_until(lambda: newest_step(tasks) > step + 20, "steps with it")
        worker.send(signal.SIGSTOP)
        tasks.wait_until(lambda: len(chief.error_lines()) == 3, "its second loss")
        chief.send(signal.SIGTERM)
        assert chief.exit_code() == TERMINATED
        assert tasks.started["worker-0"].exit_code() == TERMINATED
        assert result_of(tasks)["status"] == "preempted"


@pytest.mark.exhaustive
def test_a_synchronous_update_does_not_wait_for_ever_for_a_lost_worker(
    tmp_path: pathlib.Path,
) -> None:
    flags = (*LONG, "--update=sync", "--set=strategy.peer_timeout_seconds=2")
    with started(tmp_path, "parameter_server", *flags) as tasks:
        tasks.wait_for_checkpoint()
        tasks.started["worker-1"].send(signal.SIGKILL)
        chief = tasks.started["chief-0"]
        assert chief.exit_code() == LOST
        line = chief.error_lines()[-1]
        address = tasks.address("worker-1")
        assert line.startswith(
            f"error: 1 of 2 workers needed are left, worker-1 at {address} lost: "
        )
        assert tasks.started["ps-0"].exit_code() == LOST
        assert result_of(tasks)["status"] == "failed"


def newest_step(tasks: Tasks) -> int:
    found = (tasks.run_dir / "checkpoints").glob("step-*")
    return max(int(path.name.removeprefix("step-")) for path in found)
