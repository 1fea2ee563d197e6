"""Checks that hosts other than this machine need a flag that allows them."""

import pathlib
import socket
import sys
from typing import Any

import pytest

from strategies.cluster.connections import connect_without_proxy
from strategies.cluster.rendezvous import wait_for_cluster
from strategies.cluster.security import is_loopback
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.hello_cluster import __main__
from strategies.launcher.launch_config import local_cluster
from strategies.processes.parent import LAUNCHER_PID
from tests import processes
from trainers.cli.role import cluster_of
from trainers.config.config import Config

CONFIG = Config().replace(strategy="multi_worker_mirrored", run_dir="run")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("LocalHost", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("node[1-3]", False),
        ("localhost,node2", False),
        ("127.1", False),
    ],
)
def test_only_loopback_is_this_machine_and_nothing_else(
    host: str, expected: bool
) -> None:
    assert is_loopback(host) == expected


def tf_config(*addresses: str) -> dict[str, str]:
    cluster = Cluster(job="worker", addresses={"worker": addresses})
    return {"TF_CONFIG": cluster.tf_config()}


def srun(nodes: str) -> dict[str, str]:
    return {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": nodes}


REMOTE = {
    "TF_CONFIG": (
        tf_config("127.0.0.1:1", "10.0.0.2:2"),
        "TF_CONFIG key cluster.worker[1] is 10.0.0.2, ",
    ),
    "srun": (srun("node[1-2]"), "SLURM_STEP_NODELIST is node[1-2], "),
}


@pytest.mark.parametrize("case", REMOTE)
@pytest.mark.parametrize("mode", ["train", "doctor"])
def test_other_hosts_are_refused_unless_they_are_allowed(mode: str, case: str) -> None:
    environment, expected = REMOTE[case]
    with pytest.raises(UsageError) as refusal:
        cluster_of(CONFIG.replace(mode=mode), environment)
    message = str(refusal.value)
    assert message.startswith(expected)
    assert "whoever can connect to one can run any program there" in message
    assert "add --allow_remote_hosts if" in message
    allowed = CONFIG.replace(mode=mode, allow_remote_hosts=True)
    if case == "TF_CONFIG":
        cluster = cluster_of(allowed, environment)
        assert cluster is not None
        assert cluster.addresses == {"worker": ("127.0.0.1:1", "10.0.0.2:2")}
    else:
        # The next error shows that the hosts were accepted.
        with pytest.raises(UsageError, match="SLURM_PROCID is missing"):
            cluster_of(allowed, environment)


WRONG_NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "workers": ({"num_workers": 5}, "--num_workers=5 does not fit TF_CONFIG"),
    "restarts": ({"max_restarts": 2}, "--max_restarts=2 is for tasks that one"),
    "network": (
        {"isolate_network": "required"},
        "--set=strategy.isolate_network=required is for",
    ),
    "bandwidth": (
        {"emulated_bandwidth_mbit": 100.0},
        "--emulated_bandwidth_mbit=100 is for tasks that one command starts",
    ),
}


@pytest.mark.parametrize("case", WRONG_NUMBERS)
def test_flags_that_contradict_tf_config_are_refused(case: str) -> None:
    settings, expected = WRONG_NUMBERS[case]
    environment = tf_config("127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(UsageError, match=f"^{expected}"):
        cluster_of(CONFIG.replace(**settings), environment)
    cluster = cluster_of(CONFIG.replace(num_workers=2), environment)
    assert cluster is not None
    assert cluster.addresses == {"worker": ("127.0.0.1:1", "127.0.0.1:2")}


@pytest.mark.parametrize("starter", [{}, {LAUNCHER_PID: "1"}], ids=["user", "compare"])
def test_a_task_of_slurm_has_no_emulated_network(starter: dict[str, str]) -> None:
    """This holds too for a run that another process, such as a comparison, starts."""
    config = CONFIG.replace(emulated_bandwidth_mbit=100.0)
    with pytest.raises(UsageError, match=r"^--emulated_bandwidth_mbit=100 is for task"):
        cluster_of(config, {**srun("node[1-2]"), **starter})


SERVERS = Config().replace(strategy="parameter_server", update="sync", run_dir="run")


def three_workers() -> dict[str, str]:
    addresses = {job: (f"127.0.0.1:{n}",) for n, job in enumerate(("chief", "ps"), 1)}
    workers = tuple(f"127.0.0.1:{n}" for n in (7, 8, 9))
    cluster = Cluster(addresses={**addresses, "worker": workers})
    return {"TF_CONFIG": cluster.tf_config()}


@pytest.mark.parametrize(
    ("environment", "num_workers"),
    [({}, 2), (three_workers(), 3), ({"SLURM_STEP_NUM_TASKS": "5"}, 3)],
    ids=["here", "TF_CONFIG", "Slurm"],
)
def test_backups_are_counted_among_the_workers_there_are(
    environment: dict[str, str], num_workers: int
) -> None:
    config = SERVERS.replace(backup_workers=num_workers)
    with pytest.raises(UsageError, match=f"={num_workers} of {num_workers} workers"):
        cluster_of(config, environment)
    config = SERVERS.replace(backup_workers=num_workers - 1)
    if "SLURM_STEP_NUM_TASKS" not in environment:
        cluster_of(config, environment)
        return
    # The next error shows that they were accepted.
    with pytest.raises(UsageError, match="SLURM_PROCID is missing"):
        cluster_of(config, environment)


def test_what_a_launcher_gives_its_tasks_is_not_held_against_them() -> None:
    environment = {**tf_config("127.0.0.1:1", "127.0.0.1:2"), LAUNCHER_PID: "1"}
    assert cluster_of(CONFIG.replace(max_restarts=2), environment) is not None


def test_one_host_by_two_names_is_refused_before_tensorflow_waits() -> None:
    """Otherwise this task would answer in place of the other."""
    (own,) = local_cluster({"worker": 1})["worker"]
    names = {"127.0.0.1", socket.gethostname()}
    if socket.gethostbyname(socket.gethostname()) != "127.0.0.1":
        pytest.skip("this machine has no second name of 127.0.0.1")
    port = own.rpartition(":")[2]
    addresses = tuple(f"{name}:{port}" for name in sorted(names))
    cluster = Cluster(job="worker", addresses={"worker": addresses})
    with pytest.raises(UsageError, match="by another name"):
        wait_for_cluster(cluster, 1)


def test_loopback_needs_no_permission() -> None:
    cluster = cluster_of(CONFIG, tf_config("127.0.0.1:1", "localhost:2", "[::1]:3"))
    assert cluster is not None


def test_a_process_refuses_before_it_loads_tensorflow(tmp_path: pathlib.Path) -> None:
    """An import of TensorFlow would raise an error in this program."""
    program = (
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"
        "from trainers.main import main\n"
        "sys.exit(main(['main', '--strategy=multi_worker_mirrored', '--run_dir=run']))"
    )
    for environment, expected in REMOTE.values():
        words = [sys.executable, "-c", program]
        done = processes.run_words(words, tmp_path, **environment)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {expected}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_every_task_says_what_allowing_them_means(tmp_path: pathlib.Path) -> None:
    """The task warns before it does anything; its peers never start."""
    # RFC 2606 guarantees that this host name never exists.
    flags = ("--strategy=parameter_server", "--run_dir=run", "--allow_remote_hosts")
    short = "--set=strategy.startup_timeout_seconds=0.1"
    addresses = {
        "chief": ("host.invalid:1",),
        "worker": ("host.invalid:2",),
        "ps": ("host.invalid:3",),
    }
    chief = Cluster(job="chief", addresses=addresses)
    done = processes.run(*flags, short, folder=tmp_path, TF_CONFIG=chief.tf_config())
    assert done.returncode == 138
    warning, error = done.stderr.splitlines()
    assert warning == (
        "warning: --allow_remote_hosts: TensorFlow's servers ask for no password and "
        "encrypt nothing, and whoever can connect to one can run any program there; "
        "the network must keep everybody else away from host.invalid:1."
    )
    assert error.startswith("error: the cluster did not assemble within 0.1 s: ")


def test_the_first_cluster_is_for_one_machine(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    addresses = {"ps": ("10.0.0.1:1",), "worker": ("10.0.0.1:2", "10.0.0.1:3")}
    cluster = Cluster(job="ps", addresses=addresses)
    monkeypatch.setenv("TF_CONFIG", cluster.tf_config())
    assert __main__.main(["hello_cluster"]) == 2
    assert "hosts other than this machine's loopback" in capfd.readouterr().err


# The last test has the variable that gRPC reads.
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
@pytest.mark.parametrize("name", ["https_proxy", "http_proxy"])
def test_tasks_connect_without_a_proxy(
    strategy: str, name: str, tmp_path: pathlib.Path
) -> None:
    """The proxy does not exist, so a connection through it would fail."""
    flags = (f"--strategy={strategy}", "--model=mlp", "--train_steps=5")
    words = processes.command(f"--run_dir={tmp_path / 'run'}", *flags)
    done = processes.run_words(words, tmp_path, **{name: "http://127.0.0.1:9"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "host,::1"),
        ({"no_proxy": "example.org,host"}, "example.org,host,::1"),
        ({"no_proxy": "a", "no_grpc_proxy": "b"}, "b,host,::1"),
    ],
)
def test_hosts_without_a_proxy_are_added(before: dict[str, str], after: str) -> None:
    connect_without_proxy(["host:1", "[::1]:2", "host:3"], before)
    assert before["no_grpc_proxy"] == after
