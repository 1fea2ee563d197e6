"""Tests of an emulated network, in which each task has a host and a limited rate.

The rate is the rate of the interface and includes the headers of Ethernet, IP and TCP.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil
import pytest

from strategies.cluster.spec import Cluster
from strategies.processes.emulated_network import host_addresses, networks_of_tasks
from strategies.processes.forked_process import Process
from tests import processes
from tests.cluster.test_confinement import WITHOUT_NAMESPACES, possible
from tests.markers import further
from tests.processes import PATIENCE_SECONDS, metrics_so_far, result_of

TOOLS = ("nsenter", "ip", "tc")
needs_networks = pytest.mark.skipif(
    not possible(()) or None in map(shutil.which, TOOLS),
    reason="no network namespace here, or one of nsenter, ip and tc is missing",
)

RING = ("--strategy=multi_worker_mirrored",)
SERVER = ("--strategy=parameter_server", "--update=sync")
SMALL = ("--model=mlp", "--hidden_units=8")
# A run that sends nothing for nearly all the time.
QUIET = (
    *SMALL,
    "--train_steps=1000000",
    "--summary_every_steps=1",
    "--set=length.step_delay_milliseconds=100",
)

SEND = """
import socket, sys, time
host, port = sys.argv[1:]
while True:
    try:
        connection = socket.create_connection((host, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
assert control.rstrip(b"\\0") == b"cubic", control
block = bytes(1 << 18)
while True:
    connection.sendall(block)
"""
RECEIVE = """
import socket, sys
connection, _ = socket.create_server(("", int(sys.argv[1]))).accept()
while connection.recv(1 << 18):
    pass
"""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """A process on each host, and the address of the host, by name of the task."""

    tasks: Mapping[str, psutil.Process]
    hosts: Mapping[str, str]

    def on(self, task: str, code: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Starts a program of Python on the host of a task."""
        words = [*self._enter(task), sys.executable, "-I", "-S", "-c", code]
        return subprocess.Popen([*words, *map(str, arguments)])

    def counters(self) -> dict[tuple[str, str], int]:
        """Returns the bytes that each task has received and sent."""
        found = {}
        for task, process in self.tasks.items():
            text = pathlib.Path(f"/proc/{process.pid}/net/dev").read_text()
            ((received, sent),) = re.findall(
                r"^ *cable: *(\d+)(?: +\d+){7} +(\d+) ", text, re.M
            )
            found[task, "received"], found[task, "sent"] = int(received), int(sent)
        return found

    def _enter(self, task: str) -> list[str]:
        pid = self.tasks[task].pid
        own = os.readlink("/proc/self/ns/user")
        is_user = os.readlink(f"/proc/{pid}/ns/user") != own
        user = ["--user", "--preserve-credentials"] if is_user else []
        return ["nsenter", f"--target={pid}", *user, "--net", "--"]


@dataclasses.dataclass(frozen=True)
class Running(Hosts):
    """A run that has begun to train."""

    launcher: Process
    folder: pathlib.Path


@contextlib.contextmanager
def training(folder: pathlib.Path, *flags: str) -> Iterator[Running]:
    run = folder / "run"
    with processes.started(f"--run_dir={run}", *flags, folder=folder) as launcher:
        processes.wait_until(lambda: bool(metrics_so_far(run)), "a step", launcher)
        tasks, hosts = {}, {}
        for process in processes.tasks_of(launcher.pid):
            config = json.loads(process.environ()["TF_CONFIG"])
            job, index = config["task"]["type"], config["task"]["index"]
            cluster = Cluster(job=job, index=index, addresses=config["cluster"])
            tasks[cluster.task] = process
            hosts[cluster.task] = cluster.address.rpartition(":")[0]
        yield Running(tasks, hosts, launcher, run)


@contextlib.contextmanager
def sending(running: Hosts, pairs: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Sends as much as possible from task to task, for all pairs at the same time."""
    started = []
    try:
        for port, (sender, receiver) in enumerate(pairs, 2000):
            started.append(running.on(receiver, RECEIVE, port))
            started.append(running.on(sender, SEND, running.hosts[receiver], port))
        before = running.counters()
        # A megabyte is more than the first messages of TCP.
        while not all(
            running.counters()[sender, "sent"] - before[sender, "sent"] > 1 << 20
            for sender, _ in pairs
        ):
            assert all(process.poll() is None for process in started)
            time.sleep(0.01)
        yield
        assert all(process.poll() is None for process in started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def rates_mbit(running: Hosts, seconds: float) -> dict[tuple[str, str], float]:
    start, before = time.monotonic(), running.counters()
    time.sleep(seconds)
    passed, after = time.monotonic() - start, running.counters()
    return {key: 8e-6 * (after[key] - before[key]) / passed for key in after}


BETWEEN_WORKERS = [("worker-0", "worker-1"), ("worker-1", "worker-0")]
WITH_SERVER = [
    (sender, receiver)
    for worker in ("worker-0", "worker-1")
    for sender, receiver in ((worker, "ps-0"), ("ps-0", worker))
]


@needs_networks
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "rate_mbit"),
    [(RING, 100), further(RING, 1000), further(SERVER, 100), further(SERVER, 1000)],
    ids=lambda value: str(value[0] if isinstance(value, tuple) else value),
)
def test_each_task_sends_and_receives_at_the_rate(
    strategy: tuple[str, ...], rate_mbit: int, tmp_path: pathlib.Path
) -> None:
    flags = (*strategy, f"--emulated_bandwidth_mbit={rate_mbit}", *QUIET)
    # Pairs of senders and receivers, and the tasks whose rate limits them.
    loads: list[tuple[list[tuple[str, str]], tuple[str, ...]]]
    loads = [(BETWEEN_WORKERS, ("worker-0", "worker-1"))]
    if strategy == SERVER:
        loads.append((WITH_SERVER, ("ps-0",)))
    with training(tmp_path, *flags) as running:
        assert {t.rpartition("-")[0] for t in running.tasks} == (
            {"worker"} if strategy == RING else {"chief", "ps", "worker"}
        )
        networks = {
            os.readlink(f"/proc/{t.pid}/ns/net") for t in running.tasks.values()
        }
        networks.add(os.readlink("/proc/self/ns/net"))
        assert len(networks) == 1 + len(running.tasks)
        for pairs, bound in loads:
            with sending(running, pairs):
                windows = [rates_mbit(running, 0.7) for _ in range(3)]
            for task in bound:
                for direction in ("sent", "received"):
                    rates = [window[task, direction] for window in windows]
                    # Other work on this machine can only make it slower.
                    assert max(rates) == pytest.approx(rate_mbit, rel=0.1), (
                        task,
                        direction,
                        rates,
                    )
        running.launcher.send_signal(signal.SIGTERM)
        done = processes.end_of(running.launcher)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == ""
    assert result_of(running.folder)["emulated_bandwidth_mbit"] == rate_mbit


@contextlib.contextmanager
def idle_hosts(count: int, rate_mbit: float) -> Iterator[Hosts]:
    """Yields hosts of an emulated network with a process each, which does nothing."""
    names = [f"worker-{number}" for number in range(count)]
    hosts = dict(zip(names, host_addresses(), strict=False))
    addresses = {name: f"{host}:1" for name, host in hosts.items()}
    with (
        networks_of_tasks(addresses, rate_mbit, "auto", pytest.fail) as networks,
        contextlib.ExitStack() as started,
    ):
        tasks = {}
        for name, network in networks.items():
            words = network.command(["sh", "-c", "echo; exec sleep 600"])
            process = subprocess.Popen(
                words,
                pass_fds=tuple(network.descriptors.values()),
                stdout=subprocess.PIPE,
            )
            started.enter_context(process)
            started.callback(process.kill)
            # Only then has it entered the host.
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            tasks[name] = psutil.Process(process.pid)
        yield Hosts(tasks, hosts)


@needs_networks
def test_many_hosts_on_few_cores_reach_the_rate() -> None:
    names = [f"worker-{number}" for number in range(8)]
    around_a_ring = list(zip(names, [*names[1:], names[0]], strict=True))
    with idle_hosts(8, 100) as hosts, sending(hosts, around_a_ring):
        windows = [rates_mbit(hosts, 0.7) for _ in range(3)]
    for key in windows[0]:
        rates = [window[key] for window in windows]
        # Other work on this machine can only make it slower.
        assert max(rates) == pytest.approx(100, rel=0.1), (key, rates)


@needs_networks
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", [RING, SERVER], ids=lambda flags: flags[0])
def test_the_weights_are_those_without_a_limit(
    strategy: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    flags = (*strategy, *SMALL, "--train_steps=20")
    limited, unlimited = (
        processes.train(tmp_path / name, *flags, *limit)
        for name, limit in (
            ("limited", ("--emulated_bandwidth_mbit=100",)),
            ("unlimited", ()),
        )
    )
    assert limited["weights_sha256"] == unlimited["weights_sha256"]
    assert limited["final"] == unlimited["final"]
    assert limited["emulated_bandwidth_mbit"] == 100
    assert unlimited["emulated_bandwidth_mbit"] is None
    config = json.loads((tmp_path / "limited" / "config.json").read_text("utf-8"))
    assert config["strategy"]["emulated_bandwidth_mbit"] == 100


@needs_networks
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("strategy", "start"), [(RING, ()), further(SERVER, ("--nowarm_start",))]
)
def test_nothing_is_left_of_a_launcher_that_is_killed(
    strategy: tuple[str, ...], start: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    flags = (*strategy, *start, "--emulated_bandwidth_mbit=100", *QUIET)
    with training(tmp_path, *flags) as running:
        tasks = list(running.tasks.values())
        networks = {os.readlink(f"/proc/{t.pid}/ns/net") for t in tasks}
        with switch_of(running.launcher.pid, networks) as switch:
            ports = [f"port{number}" for number in range(len(tasks))]
            assert interfaces(switch) == sorted(["lo", "switch", *ports])
            made = set(psutil.net_if_addrs()) & {*ports, "switch", "cable"}
            with processes.networks_kept(tasks) as processes_inside:
                running.launcher.kill()
                running.launcher.wait()
                _, alive = psutil.wait_procs(tasks, timeout=PATIENCE_SECONDS)
                assert alive == []
                deadline = time.monotonic() + PATIENCE_SECONDS
                while left := processes_inside():
                    assert time.monotonic() < deadline, left
                    time.sleep(0.05)
            # A port vanishes with its other end, when the kernel removes the host.
            deadline = time.monotonic() + PATIENCE_SECONDS
            while interfaces(switch) != ["lo", "switch"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    # None of these was ever an interface of the machine itself.
    assert made == set()


@contextlib.contextmanager
def switch_of(launcher: int, others: set[str]) -> Iterator[int]:
    """Yields the only network namespace that just the launcher has open."""
    for path in pathlib.Path(f"/proc/{launcher}/fd").iterdir():
        if (name := os.readlink(path)).startswith("net:") and name not in others:
            descriptor = os.open(path, os.O_RDONLY)
            break
    else:
        raise AssertionError("the launcher has no other network open")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def interfaces(network: int) -> list[str]:
    words = ["nsenter", f"--net=/proc/self/fd/{network}", "ip", "-brief", "link"]
    done = subprocess.run(
        words, pass_fds=(network,), capture_output=True, text=True, check=True
    )
    return sorted(re.split("[@ ]", line)[0] for line in done.stdout.splitlines())


@needs_networks
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("strategy", "killed"), [(RING, "worker-1"), (SERVER, "worker-0"), (SERVER, "ps-0")]
)
def test_a_lost_task_is_started_again_on_its_host(
    strategy: tuple[str, ...], killed: str, tmp_path: pathlib.Path
) -> None:
    further_flags = ("--train_steps=100", "--checkpoint_every_steps=5")
    flags = ("--emulated_bandwidth_mbit=100", *QUIET, *further_flags)
    with training(tmp_path, *strategy, *flags) as running:
        processes.wait_until(
            lambda: bool(processes.checkpoints_of(running.folder)),
            "a checkpoint",
            running.launcher,
        )
        running.tasks[killed].kill()
        done = processes.end_of(running.launcher)
    assert done.returncode == 0, done.stderr
    result = result_of(running.folder)
    assert (result["status"], result["restarts"]) == ("completed", 1)
    unlimited = processes.train(
        tmp_path / "unlimited", *strategy, *QUIET, *further_flags
    )
    assert result["weights_sha256"] == unlimited["weights_sha256"]
    # The run can be evaluated without that network.
    done = processes.run("--mode=evaluate", f"--run_dir={running.folder}")
    assert done.returncode == 0, done.stderr


WITHOUT_TC = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    'mount --bind /dev/null "$(readlink -f "$(command -v tc)")" && exec "$@"',
    "sh",
)
IMPOSSIBLE = {
    "tc is missing": (
        WITHOUT_TC,
        "--emulated_bandwidth_mbit=100 needs the program tc, which is not installed",
    ),
    "namespaces are refused": (
        WITHOUT_NAMESPACES,
        "--emulated_bandwidth_mbit=100 cannot be met, because this machine allows no "
        "such network (no more namespaces may be made here): leave it out",
    ),
}


@needs_networks
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_where_it_cannot_be_nothing_is_started(
    case: str, tmp_path: pathlib.Path
) -> None:
    begin, expected = IMPOSSIBLE[case]
    done = run_with(begin, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {expected}")
    assert list(tmp_path.iterdir()) == []


@needs_networks
@pytest.mark.parametrize("case", ["tc is missing", further("namespaces are refused")])
def test_the_doctor_says_that_it_cannot_be(case: str, tmp_path: pathlib.Path) -> None:
    begin, expected = IMPOSSIBLE[case]
    done = run_with(begin, tmp_path, "--mode=doctor")
    assert (done.returncode, done.stderr) == (2, "")
    (problem,) = re.findall(r"^problem: (.*)$", done.stdout, re.M)
    assert problem.startswith(expected)
    assert list(tmp_path.iterdir()) == []


def run_with(
    begin: Sequence[str], folder: pathlib.Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    words = [*begin, *processes.command(*RING, "--emulated_bandwidth_mbit=100", *flags)]
    return processes.run_words(words, folder)


ARMS = (
    "--mode=compare",
    "--seeds=1",
    "--train_steps=20",
    *("--model=mlp", "--hidden_units=128"),
    "--arm=slow: --strategy=multi_worker_mirrored --emulated_bandwidth_mbit=1",
    "--arm=fast: --strategy=multi_worker_mirrored --emulated_bandwidth_mbit=1000",
)


def test_a_comparison_holds_the_network_fixed(tmp_path: pathlib.Path) -> None:
    done = processes.run(*ARMS, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: arms differ in the network: --emulated_bandwidth_mbit=1 (slow) and "
        "--emulated_bandwidth_mbit=1000 (fast); make them equal, or add"
    )
    assert list(tmp_path.iterdir()) == []


@needs_networks
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flags", "remark"),
    [
        (
            (*ARMS, "--set=comparison.allow_different=emulated_bandwidth_mbit"),
            "emulated_bandwidth_mbit is slow: 1, fast: 1000.",
        ),
        # A single process has no network, and can still be compared.
        (
            (
                *(*ARMS[:3], *SMALL, "--strategies=one_device,multi_worker_mirrored"),
                "--emulated_bandwidth_mbit=100",
            ),
            None,
        ),
    ],
    ids=["two networks", "one_device"],
)
def test_arms_are_compared(
    flags: tuple[str, ...], remark: str | None, tmp_path: pathlib.Path
) -> None:
    done = processes.run(*flags, f"--run_dir={tmp_path / 'c'}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "c" / "comparison.json").read_text("utf-8")
    remarks = [line for line in json.loads(text)["remarks"] if "network" in line]
    assert len(remarks) == (remark is not None)
    assert all(line.endswith(remark) for line in remarks)
    if remark is not None:
        path = tmp_path / "c" / "runs" / "slow" / "seed-0" / "measured.json"
        measured = json.loads(path.read_text("utf-8"))
        # Each of two workers sends 39 kB in each of 20 steps. The last fifth of a
        # second is not measured.
        assert 1.2 < measured["loopback_mib"] < 3


# Another user may not be able to run the Python of these tests.
SYSTEM_PYTHON = "/usr/bin/python3"
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
LIMITS = """
import subprocess, sys
from strategies.processes.emulated_network import networks_of_tasks

tasks = {"worker-0": "198.18.0.1:1", "worker-1": "198.18.0.2:1"}
with networks_of_tasks(tasks, 100.0, "auto", print) as networks:
    for network in networks.values():
        words = network.command(["cat", "/proc/net/dev", "/proc/self/status"])
        descriptors = tuple(network.descriptors.values())
        subprocess.run(words, pass_fds=descriptors, check=True)
"""


@needs_networks
@pytest.mark.skipif(
    None in map(shutil.which, ("setpriv", SYSTEM_PYTHON)),
    reason="setpriv or the Python of the system is missing",
)
def test_an_ordinary_user_can_have_it() -> None:
    begin = AS_NOBODY if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        # Other users may not be able to read this project, either.
        package = pathlib.Path(folder, "strategies")
        shutil.copytree(processes.ROOT / "strategies", package)
        done = subprocess.run(
            [*begin, SYSTEM_PYTHON, "-c", LIMITS],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^ *cable:", done.stdout, re.M)) == 2
    # A task may not change its network.
    assert set(re.findall(r"^CapEff:\s+(\w+)$", done.stdout, re.M)) == {"0" * 16}


@needs_networks
@pytest.mark.cluster
@pytest.mark.slow
# test_restarts.py has a task that is killed because it does not end in time.
@pytest.mark.parametrize("stop_timeout_seconds", [further(0.5), 60])
def test_asynchronous_workers_take_slow_steps_side_by_side(
    stop_timeout_seconds: float, tmp_path: pathlib.Path
) -> None:
    """A step of 0.6 MB at 4 Mbit/s takes longer than the intended length of a call.

    A call still has four steps for each worker, and the run stops after the call.
    """
    flags = (
        *("--strategy=parameter_server", "--update=async", "--num_workers=2"),
        *("--model=mlp", "--hidden_units=1024", "--train_steps=25"),
        *("--eval_every_steps=none", "--emulated_bandwidth_mbit=4"),
        f"--set=strategy.stop_timeout_seconds={stop_timeout_seconds}",
    )
    run = tmp_path / "run"
    with processes.started(*flags, f"--run_dir={run}", folder=tmp_path) as launcher:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if line.startswith("train | "))
        # The first call has one step. The second takes eight seconds at least.
        time.sleep(2)
        launcher.send_signal(signal.SIGTERM)
        done = processes.end_of(launcher)
    assert done.returncode == 143
    is_killed = (
        "chief-0 has not ended 0.5 s after SIGTERM, and is killed" in done.stderr
    )
    assert is_killed == (stop_timeout_seconds < 1)
    assert processes.checkpoints_of(run) == ([] if is_killed else ["step-00000010"])
