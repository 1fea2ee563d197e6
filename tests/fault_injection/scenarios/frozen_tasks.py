"""Scenarios of workers that are suspended while they train."""

import functools
import pathlib
import random
import time

from tests import processes
from tests.fault_injection.cluster_run import (
    MIRRORED,
    MIRRORED_STEPS,
    SERVED,
    require,
    started,
    undisturbed_weights,
)
from tests.fault_injection.scenario import Scenario


def worker_frozen(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the seconds that parameter servers made no steps."""
    with started(folder, *SERVED, "--train_steps=1000000") as run:
        run.wait_for_step(chosen.randrange(10, 100))
        run.freeze(run.task("worker", chosen.randrange(2)))
        # Steps that began before it stopped may still be written.
        time.sleep(1)
        run.wait_for_step(processes.last_step_of(run.folder) + 10)
        seconds = time.monotonic() - run.struck_at
        run.stop()
    return seconds


def mirrored_worker_frozen(
    patience_seconds: float, chosen: random.Random, folder: pathlib.Path
) -> float:
    """Returns the seconds that the other tasks lived on."""
    num_workers = chosen.choice((2, 3))
    victim = chosen.randrange(num_workers)
    flags = (
        *MIRRORED,
        f"--num_workers={num_workers}",
        f"--train_steps={MIRRORED_STEPS}",
        f"--set=strategy.peer_timeout_seconds={patience_seconds:g}",
    )
    with started(folder, *flags) as run:
        run.wait_for_step(chosen.randrange(1, MIRRORED_STEPS - 20))
        tasks = run.tasks()
        run.freeze(run.task("worker", victim))
        seconds = run.seconds_until_ended(iter(tasks))
        run.ends_well(MIRRORED_STEPS, num_restarts=1)
    require(
        run.result()["weights_sha256"] == undisturbed_weights(num_workers),
        f"other weights after worker-{victim} of {num_workers} was frozen",
    )
    return seconds


SCENARIOS = (
    Scenario(
        name="worker-frozen",
        promise="parameter servers make progress within 15 s",
        tries=5,
        attempt=worker_frozen,
        most_seconds=15.0,
    ),
    Scenario(
        name="multi-worker-frozen",
        promise="all tasks end within 12 s and start again; the same weights",
        tries=5,
        attempt=functools.partial(mirrored_worker_frozen, 10.0),
        most_seconds=12.0,
    ),
    Scenario(
        name="multi-worker-frozen-impatient",
        promise="with --set=strategy.peer_timeout_seconds=4 within 6 s",
        tries=5,
        attempt=functools.partial(mirrored_worker_frozen, 4.0),
        most_seconds=6.0,
    ),
)
