"""Checks that only its own tasks reach a cluster that one command starts.

The tasks are small programs, because the network is made before they start.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from strategies.processes.starter import ProcessStarter
from tests import processes
from trainers.experiments.measurement import measure

TASK = """
import json, os, pathlib, socket, sys, time
from strategies.processes.parent import end_with_launcher

end_with_launcher()
config = json.loads(os.environ["TF_CONFIG"])
own = config["task"]["index"]
host, port = config["cluster"]["worker"][1 - own].split(":")
own_port = int(config["cluster"]["worker"][own].split(":")[1])
# As TensorFlow's servers do: at every address of the machine.
listener = socket.create_server(("", own_port))
while True:
    try:
        socket.create_connection((host, int(port))).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
interfaces = [name for _, name in socket.if_nameindex()]
written = pathlib.Path(sys.argv[1], f".worker-{own}")
written.write_text(json.dumps({"port": own_port, "interfaces": interfaces}))
written.rename(written.with_name(f"worker-{own}"))
time.sleep(600)
"""

LAUNCH = """
import pathlib, sys
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher

folder, confine, task = sys.argv[1:]
plan = Plan(
    command=[sys.executable, "-c", task, folder],
    addresses=local_cluster({"worker": 2}),
    server_jobs=(),
    logs=pathlib.Path(folder, "logs"),
    isolation=confine,
)
say = lambda line: print(line, file=sys.stderr, flush=True)
sys.exit(Launcher(plan, say).run())
"""

# Words before a command that change the rights which the machine gives the command.
AS_AN_ORDINARY_USER = ("setpriv", "--bounding-set=-sys_admin")
WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    "sh",
)


def possible(prefix: tuple[str, ...]) -> bool:
    """Returns whether this machine can imitate a machine with certain rights."""
    if prefix and shutil.which(prefix[0]) is None:
        return False
    make = [*prefix, "unshare", "--user", "--net", "true"]
    done = subprocess.run(make, capture_output=True, check=False)
    return done.returncode == (prefix == WITHOUT_NAMESPACES)


@dataclasses.dataclass(frozen=True)
class Case:
    """A launcher with certain rights, and the expected isolation of its tasks."""

    prefix: tuple[str, ...]
    confine: str
    is_confined: bool
    says: str = ""


CASES = {
    "as it is": Case((), "auto", is_confined=True),
    "required": Case((), "required", is_confined=True),
    "in a user namespace": Case(AS_AN_ORDINARY_USER, "auto", is_confined=True),
    "switched off": Case((), "off", is_confined=False),
    "not allowed": Case(
        WITHOUT_NAMESPACES,
        "auto",
        is_confined=False,
        says="this machine allows no network namespace (no more namespaces may be",
    ),
}


def accepts(host: str, port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(processes.PATIENCE_SECONDS)
        return connection.connect_ex((host, port)) == 0


def own_addresses() -> list[str]:
    """Returns the IPv4 addresses of this machine, loopback included."""
    return [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]


@pytest.mark.cluster
@pytest.mark.parametrize("name", CASES)
def test_tasks_reach_each_other_and_nobody_else_reaches_them(
    name: str, tmp_path: pathlib.Path
) -> None:
    case = CASES[name]
    if not possible(case.prefix):
        pytest.skip("this machine cannot imitate a machine with these rights")
    begin = [*case.prefix, sys.executable, "-c", LAUNCH, str(tmp_path), case.confine]
    with processes.started(TASK, folder=processes.ROOT, begin=begin) as launcher:
        reports = [tmp_path / f"worker-{index}" for index in (0, 1)]
        processes.wait_until(
            lambda: all(path.exists() for path in reports), "both tasks", launcher
        )
        tasks = processes.tasks_of(launcher.pid)
        # No further process runs only to hold the network.
        assert len(tasks) == 2
        for path in reports:
            report = json.loads(path.read_text("utf-8"))
            assert (report["interfaces"] == ["lo"]) == case.is_confined
            reached = [accepts(host, report["port"]) for host in own_addresses()]
            assert any(reached) != case.is_confined
            # Files of the tasks belong to the user who started the launcher.
            assert (path.stat().st_uid, path.stat().st_gid) == (
                os.geteuid(),
                os.getegid(),
            )
        launcher.send_signal(signal.SIGKILL)
        _, errors = processes.outputs_of(launcher)
        _, alive = psutil.wait_procs(tasks, timeout=processes.PATIENCE_SECONDS)
        assert alive == []
    lines = errors.splitlines()
    assert len(lines) == bool(case.says)
    assert case.says in errors


@pytest.mark.skipif(not possible(WITHOUT_NAMESPACES), reason="cannot be forbidden here")
def test_where_it_is_required_and_not_allowed_nothing_is_started(
    tmp_path: pathlib.Path,
) -> None:
    flags = (
        "--strategy=multi_worker_mirrored",
        "--set=strategy.isolate_network=required",
    )
    begin = [*WITHOUT_NAMESPACES, *processes.command(*flags)]
    with processes.started(folder=tmp_path, begin=begin) as process:
        done = processes.end_of(process)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: --set=strategy.isolate_network=required cannot be met, because"
    )
    assert list(tmp_path.iterdir()) == []


TRAFFIC = """
import subprocess, sys
from strategies.processes.network_isolation import isolated_network

SEND = '''
import socket, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    with socket.create_connection(listener.getsockname()) as there:
        with listener.accept()[0] as here:
            for _ in range(256):
                there.sendall(bytes(1 << 16))
                got = 0
                while got < 1 << 16:
                    got += len(here.recv(1 << 16))
            time.sleep(1)
'''
with isolated_network("required", print) as network:
    command = network.command([sys.executable, "-c", SEND])
    subprocess.run(command, pass_fds=tuple(network.descriptors.values()), check=True)
"""


@pytest.mark.cluster
@pytest.mark.skipif(not possible(()), reason="no network namespace here")
def test_traffic_of_a_confined_cluster_is_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    command, log = [sys.executable, "-c", TRAFFIC], tmp_path / "log"
    measured = measure(command, log, lambda: False, os.environ, ProcessStarter())
    assert measured is not None
    assert measured.exit_code == 0, (tmp_path / "log").read_text()
    assert measured.loopback_mib is not None
    # 16 MiB are data, and headers and acknowledgements a few hundredths of that.
    # Traffic of other programs is not included.
    assert 16 <= measured.loopback_mib < 18
