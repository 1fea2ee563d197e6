"""Scenarios of tasks of a cluster that are killed while they train."""

import pathlib
import random
import re
import time

from tests import processes
from tests.fault_injection.cluster_run import (
    CHECKPOINT_EVERY_STEPS,
    MIRRORED,
    MIRRORED_STEPS,
    SERVED,
    SHARDED,
    SHARDED_STEPS,
    Run,
    require,
    started,
    undisturbed_weights,
)
from tests.fault_injection.scenario import Scenario

_MOST_LINES = 20


# The 40 steps between checkpoints have five averages of every fragment and a part of
# the sixth, so that anchors, momenta and the replicas' different weights are all in
# use.
OUTER = (
    *("--average=parameters", "--sync_every_steps=7"),
    *("--outer_optimizer=nesterov", "--outer_fragments=3", "--outer_dtype=bfloat16"),
)


def outer_optimizer_worker_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the seconds that the survivors lived on."""
    return multi_worker_killed(chosen, folder, *OUTER)


def multi_worker_killed(
    chosen: random.Random, folder: pathlib.Path, *further: str
) -> float:
    """Returns the seconds that the survivors lived on."""
    num_workers = chosen.choice((2, 3))
    victim = chosen.randrange(num_workers)
    step = chosen.randrange(1, MIRRORED_STEPS - 20)
    flags = (*MIRRORED, *further, f"--num_workers={num_workers}")
    with started(folder, *flags, f"--train_steps={MIRRORED_STEPS}") as run:
        run.wait_for_step(step)
        seconds = run.seconds_others_outlive("worker", victim)
        run.ends_well(MIRRORED_STEPS, num_restarts=1)
        require(
            f"worker-{victim} was lost (SIGKILL): restart 1 of 3, of all tasks, from "
            in run.errors(),
            f"the launcher says {run.errors()!r}",
        )
    require(
        run.result()["weights_sha256"]
        == undisturbed_weights(num_workers, (*MIRRORED, *further)),
        f"other weights after worker-{victim} of {num_workers} was killed at {step}",
    )
    return seconds


def killed_within_an_all_gather(chosen: random.Random, folder: pathlib.Path) -> float:
    """Kills a worker that has sent its part of the gradients, or of the weights.

    The network is so slow that these take all of a step except a few milliseconds.
    """
    victim = chosen.randrange(2)
    with started(folder, *SHARDED, f"--train_steps={SHARDED_STEPS}") as run:
        run.wait_for_step(chosen.randrange(1, SHARDED_STEPS - 10))
        time.sleep(chosen.uniform(0, 0.3))
        seconds = run.seconds_others_outlive("worker", victim)
        run.ends_well(SHARDED_STEPS, num_restarts=1)
    # The limit of the bandwidth changes no bit.
    unlimited = tuple(flag for flag in SHARDED if "bandwidth" not in flag)
    require(
        run.result()["weights_sha256"]
        == undisturbed_weights(2, unlimited, SHARDED_STEPS),
        f"other weights after worker-{victim} of 2 was killed",
    )
    return seconds


def workers_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Kills workers one by one; returns the longest absence in seconds."""
    num_kills, num_steps = 20, 2_000
    # The delay makes the run last until all these workers have started again.
    slowly = "--set=length.step_delay_milliseconds=100"
    with started(folder, *SERVED, slowly, f"--train_steps={num_steps}") as run:
        longest = _kill_workers(run, num_kills, chosen)
        run.ends_well(num_steps, num_restarts=num_kills)
        _require_counts(run, num_steps, num_kills)
    return longest


def busy_workers_killed(
    chosen: random.Random, folder: pathlib.Path, num_kills: int = 5
) -> float:
    """Kills workers in the middle of steps, and then stops the run."""
    with started(folder, *SERVED, "--train_steps=1000000") as run:
        longest = _kill_workers(run, num_kills, chosen)
        run.stop()
        _require_counts(run, run.result()["steps"], num_kills)
    return longest


def _kill_workers(run: Run, num_kills: int, chosen: random.Random) -> float:
    run.wait_for_step(10)
    longest = 0.0
    for _ in range(num_kills):
        worker = chosen.randrange(2)
        time.sleep(chosen.uniform(0, 1))
        num_lost = run.num_lost()
        run.kill(run.task("worker", worker))
        # On busy cores, lines of earlier steps may be written after the kill.
        run.wait_until_lost(num_lost + 1)
        longest = max(longest, run.seconds_until_back(worker))
    return longest


def _require_counts(run: Run, num_steps: int, num_kills: int) -> None:
    """Requires that no update was lost, and that repeated ones are counted."""
    result, counted = run.result(), run.counters()
    repeated = result["attempted_steps"] - num_steps
    require(result["restarts"] == num_kills, f"{result['restarts']} restarts")
    require(0 <= repeated <= num_kills, f"{repeated} repeated by {num_kills} kills")
    require(
        counted["step"] == num_steps
        and num_steps <= counted["optimizer"] <= num_steps + repeated,
        f"{num_steps} steps, {repeated} repeated, and variables count {counted}",
    )
    examples = result["examples_seen"]
    require(
        examples == _examples_of(num_steps), f"{examples} examples in {num_steps} steps"
    )


def server_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the seconds until the loss of the only server was noticed."""
    return _all_start_again("ps", chosen, folder)


def chief_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the seconds that the other tasks lived on."""
    return _all_start_again("chief", chosen, folder)


def _all_start_again(job: str, chosen: random.Random, folder: pathlib.Path) -> float:
    num_steps = 200
    step = chosen.randrange(CHECKPOINT_EVERY_STEPS, num_steps - 40)
    with started(folder, *SERVED, f"--train_steps={num_steps}") as run:
        run.wait_for_step(step)
        tasks, lines = run.tasks(), run.num_lines_logged()
        lost = run.task(job, 0)
        run.kill(lost)
        reached = processes.last_step_of(run.folder)
        seconds = run.seconds_until_ended(task for task in tasks if task != lost)
        lines = run.num_lines_logged() - lines
        require(lines <= _MOST_LINES, f"{lines} lines of log about {job}-0")
        run.ends_well(num_steps, num_restarts=1)
        (again,) = re.findall(
            rf"{job}-0 was lost \(SIGKILL\): restart 1 of 3, of all tasks, "
            r"from step (\d+)",
            run.errors(),
        )
        repeated = reached - int(again)
        require(
            repeated <= CHECKPOINT_EVERY_STEPS,
            f"{job}-0 was killed at {reached}, and all began again at {again}",
        )
    return seconds


def _examples_of(num_steps: int) -> int:
    """Returns the examples in steps of 64 digits; an epoch's last step is smaller."""
    epochs, steps = divmod(num_steps, 23)
    return 1438 * epochs + 64 * steps


SCENARIOS = (
    Scenario(
        name="multi-worker-killed",
        promise="the others end within 2 s; all start again; the same weights",
        tries=20,
        attempt=multi_worker_killed,
        most_seconds=2.0,
    ),
    Scenario(
        name="outer-optimizer-worker-killed",
        promise="the others end within 2 s; all start again; the same weights",
        tries=20,
        attempt=outer_optimizer_worker_killed,
        most_seconds=2.0,
    ),
    Scenario(
        name="killed-within-an-all-gather",
        promise="--shard_optimizer_state: the others end within 2 s; all start again; "
        "the same weights",
        tries=20,
        attempt=killed_within_an_all_gather,
        most_seconds=2.0,
    ),
    Scenario(
        name="parameter-server-worker-killed",
        promise="20 times: takes part again within 10 s; no update is lost, and at "
        "most one a kill repeated and counted as such",
        tries=3,
        attempt=workers_killed,
        most_seconds=10.0,
    ),
    Scenario(
        name="parameter-server-busy-worker-killed",
        promise="the same 5 times, where several steps are under way",
        tries=5,
        attempt=busy_workers_killed,
        most_seconds=10.0,
    ),
    Scenario(
        name="ps-killed",
        promise="noticed within 5 s and 20 lines; at most an interval is repeated",
        tries=10,
        attempt=server_killed,
        most_seconds=5.0,
    ),
    Scenario(
        name="chief-killed",
        promise="noticed within 5 s and 20 lines; at most an interval is repeated",
        tries=10,
        attempt=chief_killed,
        most_seconds=5.0,
    ),
)
