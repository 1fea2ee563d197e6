"""Tests of how a launcher restarts lost tasks, with small programs as tasks."""

import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TypeAlias

import pytest

from strategies.launcher import launcher, process_group
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
from strategies.launcher.process import LaunchedTask

# A task that records each start in a file, and then does the action that the test gives
# for this start. The last action is for all further starts. A number is an exit code,
# or the negative number of a signal that ends the task.
TASK = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = f"{config['task']['type']}-{config['task']['index']}"
folder = pathlib.Path(sys.argv[1])
starts = folder / f"{task}.starts"
count = len(starts.read_text().splitlines()) if starts.exists() else 0
with starts.open("a") as file:
    start = {"cluster": config["cluster"], "pid": os.getpid()}
    file.write(json.dumps({**start, "arguments": sys.argv[2:]}) + "\\n")
print(f"start {count}", flush=True)
actions = json.loads((folder / "actions.json").read_text())[task]
action = actions[min(count, len(actions) - 1)]
if action == "wait":
    time.sleep(100)
if action == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
if action == "end late":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    (folder / "ready").touch()
    time.sleep(10)
    sys.exit(0)
if action == "end when another is back":
    while not any((folder / f"worker-{n}.starts").read_text().count("\\n") > 1
                  for n in (0, 1) if (folder / f"worker-{n}.starts").exists()):
        time.sleep(0.02)
    sys.exit(0)
if action == "miss one that is stopped":
    other = folder / "worker-1.starts"
    while not other.exists() or not other.read_text().endswith("\\n"):
        time.sleep(0.02)
    pid = json.loads(other.read_text().splitlines()[0])["pid"]
    while pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "T":
        time.sleep(0.02)
    sys.exit(138)
if action == "end a moment after the others":
    while len(list(folder.glob("*.starts"))) < 2:
        time.sleep(0.02)
    time.sleep(0.3)
    sys.exit(0)
if action < 0:
    os.kill(os.getpid(), -action)
    time.sleep(100)
sys.exit(action)
"""
KILLED = -signal.SIGKILL
Actions: TypeAlias = dict[str, Sequence[int | str]]


class Cluster:
    """A cluster of fake tasks in a folder, and the messages of its launcher."""

    def __init__(
        self,
        folder: pathlib.Path,
        actions: Actions,
        server_jobs: Sequence[str] = (),
    ):
        self.folder = folder
        self.said: list[str] = []
        self.steps = [0]
        (folder / "actions.json").write_text(json.dumps(actions))
        (folder / "logs").mkdir()
        jobs = [task.partition("-")[0] for task in actions]
        self.plan = Plan(
            command=[sys.executable, "-c", TASK, str(folder)],
            addresses=local_cluster({job: jobs.count(job) for job in jobs}),
            server_jobs=server_jobs,
            logs=folder / "logs",
            max_restarts=3,
            suspend_timeout_seconds=0.5,
            resume_flags=["--resume=auto"],
            saved_step=self.step,
            reached_step=self.step,
        )

    def step(self) -> int:
        """Returns the next step that the test has set, and the last one repeatedly."""
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]

    def run(self, **changes: object) -> int:
        plan = Plan(**{**{n: getattr(self.plan, n) for n in PLANNED}, **changes})
        self.launcher = Launcher(plan, self.said.append)
        return self.launcher.run()

    def starts(self, task: str) -> list[dict]:
        text = (self.folder / f"{task}.starts").read_text()
        return [json.loads(line) for line in text.splitlines()]


PLANNED = tuple(Plan.__dataclass_fields__)


def test_all_tasks_start_again_at_new_ports_and_resume(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(tmp_path, {"worker-0": [138, 0], "worker-1": [KILLED, 0]})
    cluster.steps = [400]
    assert cluster.run() == 0
    assert cluster.said == [
        "worker-1 was lost (SIGKILL): restart 1 of 3, of all tasks, from step 400."
    ]
    assert cluster.launcher.num_restarts == 1
    for task in ("worker-0", "worker-1"):
        first, second = cluster.starts(task)
        assert (first["arguments"], second["arguments"]) == ([], ["--resume=auto"])
        before, after = first["cluster"]["worker"], second["cluster"]["worker"]
        assert len(set(before) | set(after)) == 4
    assert (tmp_path / "logs/worker-1.log").read_text() == "start 0\nstart 1\n"


@pytest.mark.parametrize(
    ("steps", "num_restarts"),
    [
        ([7], 3),
        # Progress at 10, 20 and 30 renews the budget; three restarts without progress
        # use it up.
        ([0, 10, 20, 20, 30, 30], 7),
    ],
)
def test_progress_renews_the_budget(
    steps: list[int], num_restarts: int, tmp_path: pathlib.Path
) -> None:
    cluster = Cluster(tmp_path, {"worker-0": [138], "worker-1": [KILLED]})
    cluster.steps = steps
    assert cluster.run() == 138
    assert cluster.launcher.num_restarts == num_restarts
    assert len(cluster.starts("worker-0")) == num_restarts + 1
    assert "restart 3 of 3" in cluster.said[num_restarts - 1]
    assert cluster.said[num_restarts].startswith("worker-1 failed first (SIGKILL)")


@pytest.mark.parametrize("code", [1, 2, 3, 4, 130, 143, -signal.SIGTERM])
def test_what_is_not_a_loss_does_not_start_again(
    code: int, tmp_path: pathlib.Path
) -> None:
    """This holds even where another task misses this one and ends first."""
    cluster = Cluster(tmp_path, {"worker-0": [138], "worker-1": [code]})
    assert cluster.run() == (code if code > 0 else 128 - code)
    assert cluster.launcher.num_restarts == 0
    assert len(cluster.starts("worker-1")) == 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, set[str]]]:
    """Records the seconds of each wait of a launcher, and the jobs that still run."""
    waited: list[tuple[float, set[str]]] = []
    wait = process_group.wait_for_ends

    def record_and_call(seconds: float, tasks: Sequence[LaunchedTask]) -> None:
        running = {t.cluster.job for t in tasks if t.process.poll() is None}
        start = time.monotonic()
        wait(seconds, tasks)
        waited.append((time.monotonic() - start, running))

    monkeypatch.setattr(process_group, "wait_for_ends", record_and_call)
    return waited


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_a_chief_that_was_stopped_before_it_could_tell_the_others_is_not_waited_for(
    job: str, tmp_path: pathlib.Path, waited: list[tuple[float, set[str]]]
) -> None:
    """The others would look for the chief until the start-up deadline."""
    actions: Actions = {f"{job}-0": [-signal.SIGTERM], "worker-1": ["wait"]}
    if job == "chief":
        actions = {"chief-0": [-signal.SIGTERM], "worker-0": ["wait"], "ps-0": ["wait"]}
    serving = ("worker", "ps") if job == "chief" else ()
    assert Cluster(tmp_path, actions, server_jobs=serving).run() == 143
    # The launcher needs time to notice and to end the tasks. Workers that train are
    # asked to end, which these do at once.
    seconds = sum(seconds for seconds, running in waited if running)
    assert seconds <= (2 if job == "chief" else 5)


def test_no_restarts_at_all(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(tmp_path, {"worker-0": ["wait"], "worker-1": [KILLED]})
    assert cluster.run(max_restarts=0) == 138
    assert "worker-1 failed first (SIGKILL)" in cluster.said[0]
    assert len(cluster.starts("worker-0")) == 1


UNTIL_BACK = ["end when another is back"]
SERVED: Actions = dict.fromkeys(("chief-0", "ps-0", "worker-0"), UNTIL_BACK)


@pytest.mark.parametrize("action", [KILLED, "stop"])
def test_a_worker_that_serves_starts_again_at_its_own_address(
    action: int | str, tmp_path: pathlib.Path
) -> None:
    """The launcher kills a stopped worker before it starts the worker again."""
    actions: Actions = {**SERVED, "worker-1": [action, "wait"]}
    cluster = Cluster(tmp_path, actions, server_jobs=("worker", "ps"))
    assert cluster.run() == 0
    first, second = cluster.starts("worker-1")
    assert first["cluster"] == second["cluster"]
    assert second["arguments"] == []
    assert len(cluster.starts("worker-0")) == len(cluster.starts("chief-0")) == 1
    assert cluster.said[-1] == (
        "worker-1 was lost (SIGKILL): restart 1 of 3, of this task, after step 0."
    )
    assert len(cluster.said) == (2 if action == "stop" else 1)
    log = (tmp_path / "logs/worker-1.log").read_text()
    assert log == "start 0\nstart 1\n"


def test_a_task_that_is_stopped_is_not_waited_for_when_the_others_have_missed_it(
    tmp_path: pathlib.Path,
) -> None:
    """A stopped task cannot end by itself, and is the cause of the loss."""
    actions: Actions = {
        "worker-0": ["miss one that is stopped", 0],
        "worker-1": ["stop", 0],
    }
    cluster = Cluster(tmp_path, actions)
    assert cluster.run(suspend_timeout_seconds=60.0) == 0
    assert cluster.said == [
        "worker-1 is stopped, as by SIGSTOP, and is killed.",
        "worker-1 was lost (SIGKILL): restart 1 of 3, of all tasks, from step 0.",
    ]


@pytest.mark.parametrize("lost", ["ps-0", "chief-0"])
def test_a_chief_or_a_server_takes_all_with_it(
    lost: str, tmp_path: pathlib.Path
) -> None:
    actions: Actions = {
        "chief-0": ["wait", 0],
        "ps-0": ["wait", 0],
        "worker-0": ["wait", 0],
        lost: [KILLED, 0],
    }
    cluster = Cluster(tmp_path, actions, server_jobs=("worker", "ps"))
    assert cluster.run() == 0
    assert cluster.said == [
        f"{lost} was lost (SIGKILL): restart 1 of 3, of all tasks, from step 0."
    ]
    for task in actions:
        assert len(cluster.starts(task)) == 2


def test_what_is_lost_at_the_end_is_not_missed(tmp_path: pathlib.Path) -> None:
    chief = ["end a moment after the others"]
    cluster = Cluster(tmp_path, {"worker-0": chief, "worker-1": [KILLED]})
    assert cluster.run() == 0
    assert cluster.said == []


def test_servers_are_not_waited_for_when_no_chief_is_left_to_dismiss_them(
    tmp_path: pathlib.Path, waited: list[tuple[float, set[str]]]
) -> None:
    """SIGTERM to the launcher ends the chief before it trains and can dismiss them."""
    actions: Actions = {"chief-0": ["wait"], "worker-0": ["wait"], "ps-0": ["wait"]}
    cluster = Cluster(tmp_path, actions, server_jobs=("worker", "ps"))
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert cluster.run() == 143
    timer.join()
    assert sum(seconds for seconds, jobs in waited if "ps" in jobs) <= 1


def test_a_chief_that_does_not_end_in_time_is_killed(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(tmp_path, {"worker-0": ["end late"]})

    def stop_when_ready() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_ready)
    stopping.start()
    assert cluster.run(stop_timeout_seconds=0.5) == 143
    stopping.join()
    (message,) = cluster.said
    assert message.startswith(
        "worker-0 has not ended 0.5 s after SIGTERM, and is killed: a higher "
        "--set=strategy.stop_timeout_seconds leaves more time"
    )


def test_a_signal_is_passed_on_before_the_launcher_looks_at_its_tasks_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks must save after the next step, and take many between two looks."""
    seconds_between_looks = 4.0
    monkeypatch.setattr(launcher, "_POLL_SECONDS", seconds_between_looks)
    moments: list[float] = []
    forward = LaunchedTask.forward

    def record_and_call(self: LaunchedTask, number: int) -> None:
        moments.append(time.monotonic())
        forward(self, number)

    def stop() -> None:
        moments.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LaunchedTask, "forward", record_and_call)
    timer = threading.Timer(1.0, stop)
    timer.start()
    cluster = Cluster(tmp_path, {"worker-0": ["wait"], "worker-1": ["wait"]})
    assert cluster.run() == 143
    timer.join()
    asked, passed_on = moments[:2]
    # The last look of the launcher was at most a second and a half after its start, so
    # the next would be more than two seconds after the signal.
    assert passed_on - asked < seconds_between_looks / 2


def test_a_signal_to_the_launcher_is_not_a_loss(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(tmp_path, {"worker-0": ["wait"], "worker-1": ["wait"]})
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert cluster.run() == 143
    timer.join()
    assert cluster.launcher.num_restarts == 0
