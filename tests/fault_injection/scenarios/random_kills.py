"""Scenarios of killed workers of parameter servers and stopped launchers."""

import dataclasses
import functools
import pathlib
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable, Sequence

import psutil

from tests import processes
from tests.fault_injection.cluster_run import SERVED, Run, require, started
from tests.fault_injection.scenario import Scenario
from tests.fault_injection.scenarios.launcher_killed import tasks_of

UPDATES = ("sync", "async")
# Moments of a kill. Each run has one at the start and one at the end; the others are
# drawn from the middle.
START, END = "start", "end"
MIDDLE = ("steps", "evaluation", "checkpoint")
KILLS_A_RUN = 10
RUNS = 5
_NUM_WORKERS = 2
_EVERY_STEPS = 10
# Milliseconds of delay in a step. Asynchronous steps continue while a worker is away,
# so they need more.
_DELAYS = {"sync": 20, "async": 250}
_NUM_STEPS = {"sync": 200, "async": 500}
_FLAGS = (
    *SERVED,
    f"--num_workers={_NUM_WORKERS}",
    "--num_ps=1",
    f"--checkpoint_every_steps={_EVERY_STEPS}",
    f"--eval_every_steps={_EVERY_STEPS}",
    # Small batches make evaluation take as long as the steps.
    "--set=report.eval_global_batch_size=20",
    "--max_restarts=100",
)
# A worker that is killed with fewer steps left would have no step after its return.
_STEPS_AT_THE_END = 20
_SECONDS_TO_START = 12.0
_MOST_LINES_A_KILL = 6
_NOISE = re.compile(r"Traceback \(most recent|Exception ignored|ERROR:tensorflow")


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """A kill of one or more workers.

    Attributes:
      moment: Moment in the run.
      workers: Indices of the killed workers.
      seconds: Seconds until the run made progress with all of its workers again, or
        ended.
    """

    moment: str
    workers: tuple[int, ...]
    seconds: float


def flags_of(update: str, num_steps: int) -> tuple[str, ...]:
    """Returns the flags of a run that the scenarios disturb."""
    return (
        *(*_FLAGS, f"--update={update}", f"--train_steps={num_steps}"),
        f"--set=length.step_delay_milliseconds={_DELAYS[update]}",
    )


def workers_killed(
    update: str,
    num_killed: int,
    moments: Sequence[str],
    chosen: random.Random,
    folder: pathlib.Path,
    num_steps: int,
) -> list[Kill]:
    """Kills workers at the moments of one run, and checks how it ends.

    Args:
      update: Value of --update.
      num_killed: Number of workers killed at the same time, at each moment.
      moments: Moments of the run, in order.
      chosen: Generator that draws the workers, and the time within a moment.
      folder: Empty folder for the run.
      num_steps: Number of steps of the run.
    """
    kills = []
    with started(folder, *flags_of(update, num_steps)) as run:
        for moment in moments:
            left = num_steps - processes.last_step_of(run.folder)
            if moment in MIDDLE and left < _STEPS_AT_THE_END:
                continue
            kill = _kill(run, update, moment, num_steps, num_killed, chosen)
            if kill is not None:
                kills.append(kill)
        num_kills = sum(len(kill.workers) for kill in kills)
        # The launcher may not restart a worker that is killed just before the end.
        last = [kill for kill in kills if kill.moment == END]
        spared = sum(len(kill.workers) for kill in last)
        _require_good_end(run, update, num_steps, num_kills, spared)
        require_no_noise(run, _MOST_LINES_A_KILL * num_kills)
    require_nothing_left(run.process.pid)
    return kills


def _kill(
    run: Run,
    update: str,
    moment: str,
    num_steps: int,
    num_killed: int,
    chosen: random.Random,
) -> Kill | None:
    """Kills at a moment, and waits until the run continues; None if it has ended."""
    _wait_for(run, update, moment, num_steps, chosen)
    workers = tuple(chosen.sample(range(_NUM_WORKERS), num_killed))
    tasks = [
        task
        for index in workers
        for task in processes.tasks_found(run.process.pid, "worker", index)
    ]
    if len(tasks) < num_killed or run.process.poll() is not None:
        return None
    for task in tasks:
        run.kill(task)
    if moment == END:
        # The caller checks how the run ends.
        run.process.wait(processes.PATIENCE_SECONDS)
        return Kill(moment, workers, time.monotonic() - run.struck_at)
    if moment == START:
        run.wait_for_step(1)
        return Kill(moment, workers, time.monotonic() - run.struck_at)
    if update == "sync":
        # An update needs all workers, but the present one may have their shares
        # already.
        run.wait_for_step(processes.last_step_of(run.folder) + _EVERY_STEPS)
        return Kill(moment, workers, time.monotonic() - run.struck_at)
    return Kill(moment, workers, max(map(run.seconds_until_back, workers)))


def _wait_for(
    run: Run, update: str, moment: str, num_steps: int, chosen: random.Random
) -> None:
    """Waits for a random time within a moment of the run."""
    if moment == START:
        everyone = functools.partial(_has_all_workers, run.process.pid)
        processes.wait_until(everyone, "the workers", run.process)
        time.sleep(chosen.uniform(0.0, _SECONDS_TO_START))
    elif moment == END:
        left = chosen.randrange(1, _EVERY_STEPS)
        run.wait_for_step(num_steps - left)
        # The wait is shorter than the remaining steps; otherwise the run would be over.
        time.sleep(chosen.uniform(0.0, left * _DELAYS[update] / 1000))
    elif moment == "steps":
        run.wait_for_step(processes.last_step_of(run.folder) + 1)
        time.sleep(chosen.uniform(0.0, 1.0))
    else:
        # A step's line is written first, then comes the evaluation, then the
        # checkpoint.
        step = processes.last_step_of(run.folder) // _EVERY_STEPS + 1
        run.wait_for_step(step * _EVERY_STEPS)
        if moment == "evaluation":
            time.sleep(chosen.uniform(0.0, 0.3))
        else:
            _wait_for_save(run)
            time.sleep(chosen.uniform(0.0, 0.05))


def _has_all_workers(launcher: int) -> bool:
    return all(
        processes.tasks_found(launcher, "worker", index)
        for index in range(_NUM_WORKERS)
    )


def _wait_for_save(run: Run) -> None:
    """Waits until a checkpoint is being written, or has just been written."""
    newest = processes.checkpoints_of(run.folder)[-1:]

    def is_writing() -> bool:
        unfinished = list((run.folder / "checkpoints").glob(".*"))
        return bool(unfinished) or processes.checkpoints_of(run.folder)[-1:] != newest

    processes.wait_until(is_writing, "a checkpoint", run.process)


def _require_good_end(
    run: Run, update: str, num_steps: int, num_kills: int, num_spared: int
) -> None:
    """Requires that the run is complete, with every step applied once."""
    code = run.process.wait(processes.PATIENCE_SECONDS)
    require(code == 0, f"exit code {code}: {run.errors()[-1000:]!r}")
    result, counted = run.result(), run.counters()
    repeated = result["attempted_steps"] - num_steps
    found = {"step": counted["step"], "result": result["steps"]}
    require(set(found.values()) == {num_steps}, f"{num_steps} steps, and {found}")
    most = num_kills if update == "async" else 0
    require(0 <= repeated <= most, f"{repeated} repeated by {num_kills} kills")
    require(
        num_steps <= counted["optimizer"] <= num_steps + repeated,
        f"{num_steps} steps, {repeated} repeated; the optimizer counts {counted}",
    )
    lines = list(processes.train_losses_of(run.folder))
    require(lines == sorted(set(lines)), f"lines of metrics.jsonl: {lines}")
    restarts = result["restarts"]
    require(
        num_kills - num_spared <= restarts <= num_kills,
        f"{restarts} restarts after {num_kills} kills, {num_spared} at the end",
    )
    if update == "sync":
        same = result["weights_sha256"] == undisturbed_weights(num_steps)
        require(same, f"other weights than undisturbed after {num_kills} kills")


@functools.cache
def undisturbed_weights(num_steps: int) -> str:
    """Returns the digest of the weights of a synchronous run without a fault."""
    with (
        tempfile.TemporaryDirectory() as folder,
        started(pathlib.Path(folder), *flags_of("sync", num_steps)[:-1]) as run,
    ):
        code = run.process.wait(processes.PATIENCE_SECONDS)
        require(code == 0, f"undisturbed: exit code {code}: {run.errors()!r}")
        return run.result()["weights_sha256"]


def require_no_noise(run: Run, most_lines: int) -> None:
    """Requires that the terminal and logs have only lines for people."""
    texts = {"terminal": run.errors()}
    texts |= {file.name: file.read_text() for file in run.folder.glob("logs/*.log")}
    for name, text in texts.items():
        found = _NOISE.search(text)
        where = text[found.start() :][:1500] if found else ""
        require(found is None, f"in {name}: {where!r}")
    num_lines = len(texts["terminal"].splitlines())
    require(num_lines <= most_lines, f"{num_lines} lines: {texts['terminal']!r}")


def require_nothing_left(launcher: int) -> None:
    """Requires that the tasks have ended with the launcher."""
    left = [task for task in tasks_of(launcher) if _runs(task)]
    require(not left, f"{len(left)} tasks outlive their launcher")


def _runs(task: psutil.Process) -> bool:
    try:
        return task.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(
    update: str,
    moment: str,
    kills_first: bool,
    chosen: random.Random,
    folder: pathlib.Path,
) -> float:
    """Stops a run by SIGTERM to its launcher; returns the seconds until its end.

    Args:
      update: Value of --update.
      moment: One of `MIDDLE`, or `START`.
      kills_first: True if a worker is killed before, and has returned.
      chosen: Generator that draws the worker, and the time within the moment.
      folder: Empty folder for the run.
    """
    num_steps = _NUM_STEPS[update]
    with started(folder, *flags_of(update, num_steps)) as run:
        if kills_first:
            run.wait_for_step(1)
            _kill(run, update, chosen.choice(MIDDLE), num_steps, 1, chosen)
        _wait_for(run, update, moment, num_steps, chosen)
        seen = processes.last_step_of(run.folder)
        run.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code = run.process.wait(processes.PATIENCE_SECONDS)
        seconds = time.monotonic() - began
        words = run.errors()
        require(code == 143, f"exit code {code} at {moment}: {words[-1000:]!r}")
        require("is killed" not in words, f"at {moment}: {words!r}")
        require_no_noise(run, 2 + _MOST_LINES_A_KILL * kills_first)
        if (run.folder / "result.json").exists() or seen:
            _require_saved(run)
    require_nothing_left(run.process.pid)
    return seconds


def _require_saved(run: Run) -> None:
    """Requires that the last checkpoint has the last step."""
    result, saved = run.result(), processes.checkpoints_of(run.folder)[-1:]
    require(result["status"] == "preempted", f"status {result['status']}")
    step = f"step-{result['steps']:08d}"
    require(saved == [step], f"{result['steps']} steps, and checkpoint {saved}")


def _kill_through_a_run(
    update: str, num_killed: int, chosen: random.Random, folder: pathlib.Path
) -> float:
    middle = [chosen.choice(MIDDLE) for _ in range(KILLS_A_RUN - 2)]
    moments = (START, *middle, END)
    num_steps = _NUM_STEPS[update]
    kills = workers_killed(update, num_killed, moments, chosen, folder, num_steps)
    for kill in kills:
        print(f"{update} {num_killed}: {kill}", flush=True)
    struck = [kill.moment for kill in kills]
    # The run may end between its last step and the kill at its end.
    require(len(kills) >= len(moments) - 1, f"the run was over after {struck}")
    return max(kill.seconds for kill in kills)


def _stop_a_run(update: str, chosen: random.Random, folder: pathlib.Path) -> float:
    moment = chosen.choice((START, *MIDDLE))
    return stopped(update, moment, chosen.random() < 0.3, chosen, folder)


Attempt = Callable[[random.Random, pathlib.Path], float]


def _scenarios() -> list[Scenario]:
    found = []
    for update in UPDATES:
        for num_killed in (1, 2):
            attempt: Attempt = functools.partial(
                _kill_through_a_run, update, num_killed
            )
            of = "one worker" if num_killed == 1 else "both workers at once"
            scenario = Scenario(
                name=f"parameter-server-{update}-{num_killed}-killed",
                promise=f"{KILLS_A_RUN} times {of} at a random moment from start to "
                "end: goes on with all workers; every update once; no traceback",
                tries=RUNS,
                attempt=attempt,
                most_seconds=30.0,
            )
            found.append(scenario)
        stop: Attempt = functools.partial(_stop_a_run, update)
        scenario = Scenario(
            name=f"parameter-server-{update}-sigterm",
            promise="SIGTERM to the launcher: all end by themselves with 143 and a "
            "checkpoint of the last step; no traceback",
            tries=50,
            attempt=stop,
            most_seconds=10.0,
        )
        found.append(scenario)
    return found


SCENARIOS = tuple(_scenarios())
