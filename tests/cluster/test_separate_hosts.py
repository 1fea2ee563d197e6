"""Tests of training on hosts with different addresses, one of which is cut off.

The test pulls the cable on the switch's side: the others hear nothing, not even a
refused connection, and the host itself has no route to the others.
"""

import contextlib
import functools
import pathlib
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests import processes
from tests.cluster.separate_hosts import Hosts, reason_for_none, separate_hosts
from tests.cluster.tasks import Tasks, running
from tests.processes import checkpoints_of, result_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(reason_for_none()), reason=reason_for_none()),
]

# Each task has a host, in this order.
TASKS = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "ps": 1, "worker": 2},
}
SYNCHRONOUS = {
    "multi_worker_mirrored": (),
    "parameter_server": ("--update=sync",),
}
CHIEFS = {"multi_worker_mirrored": "worker-0", "parameter_server": "chief-0"}
TRAINING = (
    *("--model=mlp", "--hidden_units=8", "--train_steps=400"),
    *("--eval_every_steps=none", "--set=report.histogram_every_steps=none"),
)
# The training is slow, so that the cable is pulled in the middle of it.
SLOW = ("--checkpoint_every_steps=20", "--set=length.step_delay_milliseconds=50")
ALLOWED = "--allow_remote_hosts"
LOST = 138
# TensorFlow's coordination service misses a task after this time without a heartbeat.
SECONDS_OF_TENSORFLOW = 10.0


class Network:
    """A cluster with a host for each task."""

    def __init__(
        self, hosts: Hosts, folder: pathlib.Path, strategy: str, jobs: Mapping[str, int]
    ):
        names = [f"{job}-{i}" for job, count in jobs.items() for i in range(count)]
        self.hosts = hosts
        self.place = {name: host for host, name in enumerate(names)}
        self._folder = folder
        self._strategy = strategy
        self._addresses = {
            job: tuple(
                f"{hosts.address(self.place[f'{job}-{i}'])}:2222" for i in range(count)
            )
            for job, count in jobs.items()
        }

    @contextlib.contextmanager
    def tasks(self, *flags: str) -> Iterator[Tasks]:
        networks = {name: self.hosts.networks[at] for name, at in self.place.items()}
        given = (f"--strategy={self._strategy}", ALLOWED, *flags)
        with running(Tasks(self._addresses, self._folder, given, networks)) as tasks:
            yield tasks

    def cut_off(self, task: str) -> None:
        self.hosts.cut_off(self.place[task])

    def connect(self, task: str) -> None:
        self.hosts.connect(self.place[task])

    def assert_no_process_is_left(self) -> None:
        left = {task: self.hosts.processes(host) for task, host in self.place.items()}
        assert not any(left.values()), left


@contextlib.contextmanager
def network(
    folder: pathlib.Path, strategy: str, **further_jobs: int
) -> Iterator[Network]:
    jobs = {**TASKS[strategy], **further_jobs}
    with separate_hosts(sum(jobs.values())) as hosts:
        yield Network(hosts, folder, strategy, jobs)


@functools.cache
def on_one_host(strategy: str) -> dict[str, Any]:
    """Returns the result of the same training with all tasks on one host."""
    with tempfile.TemporaryDirectory() as folder:
        return processes.train(
            pathlib.Path(folder, "run"),
            *(f"--strategy={strategy}", "--num_workers=2"),
            *(*SYNCHRONOUS[strategy], *TRAINING),
        )


def assert_as_on_one_host(tasks: Tasks, strategy: str) -> None:
    assert tasks.exit_codes() == dict.fromkeys(tasks.started, 0), tasks.error_lines()
    result, expected = result_of(tasks.run_dir), on_one_host(strategy)
    assert result["status"] == "completed"
    assert result["steps"] == expected["steps"] == 400
    assert result["final"]["eval_loss"] == expected["final"]["eval_loss"]
    assert result["weights_sha256"] == expected["weights_sha256"]


def error_lines_of(tasks: Tasks, name: str) -> list[str]:
    """Returns the lines of a task's standard error, without the warning of the flag."""
    lines = tasks.started[name].error_lines()
    return [line for line in lines if not line.startswith(f"warning: {ALLOWED}: ")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", TASKS)
def test_the_weights_are_those_of_one_host(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    with (
        network(tmp_path, strategy) as hosts,
        hosts.tasks(*SYNCHRONOUS[strategy], *TRAINING) as tasks,
    ):
        assert_as_on_one_host(tasks, strategy)
        assert not any(error_lines_of(tasks, name) for name in tasks.started)
        hosts.assert_no_process_is_left()


def assert_run_ends(hosts: Network, strategy: str, cut: str) -> None:
    """Cuts off the host of a task that the run needs, and waits for all to end."""
    flags = (*SYNCHRONOUS[strategy], *TRAINING, *SLOW)
    with hosts.tasks(*flags, "--set=strategy.peer_timeout_seconds=2") as tasks:
        tasks.wait_for_checkpoint()
        hosts.cut_off(cut)
        cut_at = time.monotonic()
        assert tasks.exit_codes() == dict.fromkeys(tasks.started, LOST)
        if strategy == "multi_worker_mirrored":
            # Without its watch, it would end when TensorFlow's limit has passed.
            assert time.monotonic() - cut_at < SECONDS_OF_TENSORFLOW
        for name in tasks.started:
            last = error_lines_of(tasks, name)[-1]
            assert last.startswith("error: "), name
            assert last.endswith("--resume=auto to continue the run."), name
        if cut != CHIEFS[strategy]:
            assert f"{cut} at " in error_lines_of(tasks, CHIEFS[strategy])[-1]
        hosts.assert_no_process_is_left()


def test_the_run_ends_when_a_host_is_cut_off(tmp_path: pathlib.Path) -> None:
    """No task on either side waits for ever."""
    strategy = "multi_worker_mirrored"
    with network(tmp_path, strategy) as hosts:
        assert_run_ends(hosts, strategy, "worker-1")


# Runs also continue in test_gradient_compression.py, on one host.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("strategy", "cut"),
    [
        ("multi_worker_mirrored", "worker-1"),
        ("multi_worker_mirrored", "worker-0"),
        ("parameter_server", "ps-0"),
        ("parameter_server", "chief-0"),
        ("parameter_server", "worker-1"),
    ],
)
def test_the_run_ends_and_goes_on_when_the_host_is_back(
    strategy: str, cut: str, tmp_path: pathlib.Path
) -> None:
    with network(tmp_path, strategy) as hosts:
        assert_run_ends(hosts, strategy, cut)
        hosts.connect(cut)
        flags = (*SYNCHRONOUS[strategy], *TRAINING, "--resume=auto")
        with hosts.tasks(*flags) as tasks:
            assert_as_on_one_host(tasks, strategy)
            hosts.assert_no_process_is_left()


# test_task_endings.py suspends a worker, which is as silent, and lets it continue.
@pytest.mark.exhaustive
def test_others_go_on_without_a_worker_and_with_it_again(
    tmp_path: pathlib.Path,
) -> None:
    strategy, cut = "parameter_server", "worker-1"
    flags = (
        *TRAINING,
        *SLOW,
        "--train_steps=1000000",
        "--set=strategy.peer_timeout_seconds=2",
    )
    with network(tmp_path, strategy) as hosts, hosts.tasks(*flags) as tasks:
        tasks.wait_for_checkpoint()
        hosts.cut_off(cut)
        address = tasks.address(cut)
        # The worker cannot know whether the chief still runs, and ends.
        assert tasks.started.pop(cut).exit_code() == LOST
        wait_for_line(tasks, f"{cut} at {address} does not answer; the others go on.")
        wait_for_steps(tasks)
        hosts.connect(cut)
        tasks.start(cut, "--resume=auto")
        wait_for_line(tasks, f"{cut} at {address} is back.")
        wait_for_steps(tasks)
        tasks.started["chief-0"].send(signal.SIGTERM)
        codes = dict.fromkeys(tasks.started, 128 + signal.SIGTERM)
        assert tasks.exit_codes() == codes
        # The chief printed one line about the loss and one about the return.
        assert len(error_lines_of(tasks, "chief-0")) == 2
        result = result_of(tasks.run_dir)
        assert checkpoints_of(tasks.run_dir)[-1] == f"step-{result['steps']:08d}"
        assert result["attempted_steps"] >= result["steps"]
        hosts.assert_no_process_is_left()


def wait_for_line(tasks: Tasks, line: str) -> None:
    warning = f"warning: {line}"
    tasks.wait_until(lambda: warning in error_lines_of(tasks, "chief-0"), line)


def wait_for_steps(tasks: Tasks) -> None:
    """Waits for two more checkpoints, because one may have been under way."""
    folder = tasks.run_dir
    before = checkpoints_of(folder)[-1]
    tasks.wait_until(
        lambda: sum(name > before for name in checkpoints_of(folder)) >= 2, "steps"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", TASKS)
def test_nobody_minds_a_cable_that_is_out_for_a_moment(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    """The cable is out for less than strategy.peer_timeout_seconds, which is 10."""
    flags = (*SYNCHRONOUS[strategy], *TRAINING, *SLOW)
    with network(tmp_path, strategy) as hosts, hosts.tasks(*flags) as tasks:
        tasks.wait_for_checkpoint()
        hosts.cut_off("worker-1")
        time.sleep(2)
        hosts.connect("worker-1")
        assert_as_on_one_host(tasks, strategy)
        assert error_lines_of(tasks, CHIEFS[strategy]) == []


@pytest.mark.exhaustive
def test_an_evaluator_waits_for_a_silent_chief_as_long_as_the_others(
    tmp_path: pathlib.Path,
) -> None:
    """The cable is out for longer than the five seconds it waits for an ended chief."""
    strategy = "multi_worker_mirrored"
    with (
        network(tmp_path, strategy, evaluator=1) as hosts,
        hosts.tasks(
            *TRAINING, *SLOW, "--set=strategy.peer_timeout_seconds=30"
        ) as tasks,
    ):
        tasks.wait_for_checkpoint()
        hosts.cut_off("evaluator-0")
        time.sleep(8)
        hosts.connect("evaluator-0")
        assert_as_on_one_host(tasks, strategy)
        assert error_lines_of(tasks, "evaluator-0") == []
