"""A scenario of all kinds of faults at random moments, one after another, in one run.

`python -m tests.fault_injection --only=random-faults` takes about an hour.
"""

import pathlib
import random
import signal
import time
from collections.abc import Callable, Sequence

import psutil

from strategies.processes.forked_process import Process
from tests import processes
from tests.fault_injection.continuation import SMALL, undisturbed_weights
from tests.fault_injection.scenario import Scenario
from tests.fault_injection.scenarios.damage import KINDS

_STEPS = 300
_FLAGS = (
    *SMALL,
    f"--train_steps={_STEPS}",
    "--checkpoint_every_steps=20",
    "--set=report.keep_checkpoints=5",
    "--summary_every_steps=5",
    "--set=length.step_delay_milliseconds=40",
    "--set=strategy.peer_timeout_seconds=4",
)
# Strategies, and whether their runs must end with the same weights.
_STRATEGIES = (
    (("--strategy=one_device",), True),
    (("--strategy=mirrored", "--num_replicas=2"), True),
    (("--strategy=multi_worker_mirrored", "--num_workers=2"), True),
    (("--strategy=multi_worker_mirrored", "--num_workers=3"), True),
    (("--strategy=parameter_server", "--num_workers=2"), False),
)
_FAULTS_A_RUN = 6
_MOST_SECONDS_WITHOUT_PROGRESS = 60.0
_SECONDS_TO_DISAPPEAR = 5.0
# Exit codes after which the run is started again: it was killed, or has stopped. Before
# the first step the signal itself ends it.
_MAY_GO_ON = {-signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM, 130, 138, 143}


def _attempt(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the longest time without progress."""
    strategy, is_exact = chosen.choice(_STRATEGIES)
    run, flags = folder / "run", (*strategy, *_FLAGS)
    trouble = _Trouble(run, chosen)
    code = None
    while code != 0:
        with processes.started(
            *flags, f"--run_dir={run}", "--resume=auto", folder=folder
        ) as process:
            code = trouble.until_it_ends(process)
        said = f"{strategy} after {', '.join(trouble.done)}"
        assert code == 0 or code in _MAY_GO_ON, f"{said}: exit code {code}"
        if code != 0 and chosen.random() < 0.3:
            trouble.damage_newest_checkpoint()
    result = processes.result_of(run)
    assert (result["status"], result["steps"]) == ("completed", _STEPS), said
    if is_exact:
        same = result["weights_sha256"] == undisturbed_weights(*flags)
        assert same, f"{said}: other weights than undisturbed"
    return trouble.longest_seconds


class _Trouble:
    """A source of faults in a run, which checks that the run makes progress."""

    def __init__(self, run: pathlib.Path, chosen: random.Random):
        self.done: list[str] = []
        self.longest_seconds = 0.0
        self._run = run
        self._chosen = chosen
        # A checkpoint that is written again still counts as damaged.
        self._damaged: set[str] = set()

    def until_it_ends(self, process: Process) -> int:
        """Makes a fault every few seconds, and returns the exit code of the run."""
        tasks: Sequence[psutil.Process] = []
        seen, since = None, time.monotonic()
        next_fault = since + self._chosen.uniform(1, 12)
        while process.poll() is None:
            step, now = processes.last_step_of(self._run), time.monotonic()
            if step != seen:
                seen, since = step, now
            self.longest_seconds = max(self.longest_seconds, now - since)
            said = f"no progress for {now - since:.0f} s after {', '.join(self.done)}"
            assert now - since <= _MOST_SECONDS_WITHOUT_PROGRESS, said
            tasks = _children(process) or tasks
            if now >= next_fault and len(self.done) < _FAULTS_A_RUN:
                self._strike(process, tasks)
                next_fault = now + self._chosen.uniform(1, 12)
            time.sleep(0.1)
        processes.end_of(process)
        _, alive = psutil.wait_procs(tasks, timeout=_SECONDS_TO_DISAPPEAR)
        assert not alive, f"{len(alive)} processes are left after {self.done[-1:]}"
        return process.returncode

    def damage_newest_checkpoint(self) -> None:
        """Damages the newest checkpoint if it is whole and not the only one."""
        names = processes.checkpoints_of(self._run)
        whole = [name for name in names if name not in self._damaged]
        kinds = [kind for kind in KINDS if "before" not in kind]
        if len(whole) > 1 and whole[-1] == names[-1]:
            kind = self._chosen.choice(kinds)
            KINDS[kind](self._run / "checkpoints" / names[-1], self._chosen)
            self._damaged.add(names[-1])
            self.done.append(f"damage ({kind})")

    def _strike(self, process: Process, tasks: Sequence[psutil.Process]) -> None:
        main = psutil.Process(process.pid)
        faults: dict[str, Callable[[], object]] = {
            "SIGKILL": main.kill,
            "SIGTERM": main.terminate,
            "SIGINT": lambda: main.send_signal(signal.SIGINT),
            "a pause": lambda: _pause(main, self._chosen.uniform(0, 3)),
        }
        if tasks:
            task = self._chosen.choice(tasks)
            faults["SIGKILL of a task"] = task.kill
            faults["SIGSTOP of a task"] = task.suspend
            faults["SIGTERM of a task"] = task.terminate
        name = self._chosen.choice(list(faults))
        try:
            faults[name]()
        except psutil.NoSuchProcess:
            # The process has just ended; the next fault comes in a few seconds.
            return
        self.done.append(name)


def _pause(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    time.sleep(seconds)
    process.resume()


def _children(process: Process) -> list[psutil.Process]:
    try:
        return processes.tasks_of(process.pid)
    except psutil.NoSuchProcess:
        return []


SCENARIOS = (
    Scenario(
        name="random-faults",
        promise="6 faults a run of any kind: never without progress for 60 s, nothing "
        "left behind, and the right state at the end",
        # 45 tries take about an hour on an idle machine; --minutes=60 takes an hour on
        # any.
        tries=45,
        attempt=_attempt,
        most_seconds=_MOST_SECONDS_WITHOUT_PROGRESS,
    ),
)
