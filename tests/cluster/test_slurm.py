"""Checks that Slurm's variables make a process the task that Slurm started."""

import os
import pathlib

import pytest

from strategies.cluster import slurm
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.processes.forked_process import Process
from tests import processes
from tests.processes import result_of

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[1-3,7]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_PROCID": "2",
}


def identify(
    monkeypatch: pytest.MonkeyPatch, jobs: dict[str, int], **changed: str
) -> Cluster:
    environment = {**STEP, **changed}
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return slurm.identify(environment, jobs)


def test_one_task_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = identify(monkeypatch, {"worker": 4})
    port = slurm.first_port(4711, 0)
    hosts = ("node1", "node2", "node3", "node7")
    assert cluster.addresses == {"worker": tuple(f"{h}:{port}" for h in hosts)}
    assert cluster.task == "worker-2"


def test_tasks_of_one_node_have_ports_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = identify(
        monkeypatch,
        {"chief": 1, "worker": 3, "ps": 2},
        SLURM_STEP_NUM_TASKS="6",
        SLURM_STEP_NODELIST="a-n[08-09],login",
        SLURM_STEP_TASKS_PER_NODE="2(x2),2",
        SLURM_PROCID="3",
    )
    port = slurm.first_port(4711, 0)
    assert cluster.addresses == {
        "chief": (f"a-n08:{port}",),
        "ps": (f"a-n08:{port + 1}", f"a-n09:{port}"),
        "worker": (f"a-n09:{port + 1}", f"login:{port}", f"login:{port + 1}"),
    }
    assert cluster.task == "worker-0"


def test_nodes_stay_in_slurms_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted as text, node10 precedes node9, and every rank would be another task."""
    cluster = identify(
        monkeypatch,
        {"worker": 3},
        SLURM_STEP_NUM_TASKS="3",
        SLURM_STEP_NODELIST="node[9-11]",
        SLURM_STEP_TASKS_PER_NODE="1(x3)",
        SLURM_PROCID="0",
        SLURMD_NODENAME="node9",
    )
    assert [a.split(":")[0] for a in cluster.addresses["worker"]] == [
        *("node9", "node10", "node11")
    ]
    assert cluster.task == "worker-0"


WRONG = {
    "no rank": ({"SLURM_PROCID": ""}, "SLURM_PROCID=: it takes a whole number"),
    "a rank too high": ({"SLURM_PROCID": "4"}, "it takes a number below 4"),
    "no job": ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x: it takes a whole number"),
    "no nodes": ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST=: it takes"),
    "nodes": ({"SLURM_STEP_NODELIST": "node[1-"}, 'Invalid hostlist format "node[1-"'),
    "tasks": ({"SLURM_STEP_TASKS_PER_NODE": "x4"}, "Invalid tasks-per-node"),
    "fewer tasks": (
        {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"},
        "Requested 4 tasks but only 3",
    ),
    "a cyclic order": (
        {"SLURMD_NODENAME": "node2"},
        "SLURM_PROCID=2 is on node2, and should be on node3",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_variable_is_refused_in_one_line(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, expected = WRONG[case]
    with pytest.raises(UsageError) as refusal:
        identify(monkeypatch, {"worker": 4}, **changed)
    assert expected in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_tasks_are_divided_among_jobs_as_the_flags_say() -> None:
    wanted = {"chief": 1, "worker": None, "ps": 1}
    assert slurm.num_tasks_by_job(STEP, wanted) == {"chief": 1, "worker": 2, "ps": 1}
    for wrong in (
        {**wanted, "ps": 3},
        {**wanted, "worker": 1},
        {**wanted, "worker": 3},
    ):
        with pytest.raises(UsageError, match="Slurm has started 4 tasks, and the"):
            slurm.num_tasks_by_job(STEP, wrong)


@pytest.mark.parametrize(
    "outside",
    [
        {},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        # A batch script of four tasks has these variables before srun.
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "4711"},
    ],
)
def test_outside_srun_a_process_is_alone(outside: dict[str, str]) -> None:
    assert slurm.is_step(STEP)
    assert not slurm.is_step(outside)


def test_steps_and_jobs_that_run_together_have_other_ports() -> None:
    numbers = [(job, step) for job in range(100_000, 100_010) for step in range(10)]
    ports = [slurm.first_port(job, step) for job, step in numbers]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 1024
    # Linux gives ports from 32768 on to outgoing connections.
    assert max(ports) + 64 <= 32_768


def start(rank: int, folder: pathlib.Path, *flags: str) -> Process:
    step = {
        **STEP,
        # The process id gives concurrent runs of this test different ports.
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_PROCID": str(rank),
    }
    return processes.start(*flags, folder=folder, **step)


# A process with Slurm's variables cannot be forked. The tests above identify tasks.
@pytest.mark.cluster
@pytest.mark.exhaustive
def test_two_tasks_of_a_step_train_together(tmp_path: pathlib.Path) -> None:
    flags = (
        "--strategy=multi_worker_mirrored",
        *("--model=mlp", "--train_steps=20", f"--run_dir={tmp_path / 'run'}"),
    )
    tasks = [start(rank, tmp_path, *flags) for rank in (0, 1)]
    ends = processes.ends_of(tasks)
    assert [end.returncode for end in ends] == [0, 0], [end.stderr for end in ends]
    assert "worker-1 ends at step 20" in ends[1].stdout
    result = result_of(tmp_path / "run")
    port = slurm.first_port(os.getpid(), 0)
    assert result["cluster"] == {
        "worker": [f"localhost:{port}", f"localhost:{port + 1}"]
    }
    assert (result["num_replicas"], result["steps"]) == (2, 20)


def test_a_missing_variable_is_one_line_and_exit_code_2(tmp_path: pathlib.Path) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    done = processes.run(
        "--strategy=multi_worker_mirrored", "--run_dir=run", folder=tmp_path, **step
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: SLURM_PROCID is missing: it takes a whole number")
    assert list(tmp_path.iterdir()) == []
