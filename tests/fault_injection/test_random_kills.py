"""Tests of killed workers of parameter servers and of stopped launchers."""

import pathlib
import random

import pytest

from tests import processes
from tests.fault_injection.scenarios import random_kills
from tests.markers import chosen, further

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


THROUGH_A_RUN = ("start", "steps", "end")


# A launcher starts a worker again in the same way at every moment of a run.
# test_lost_tasks.py kills a worker that does not wait.
@pytest.mark.parametrize(
    ("update", "num_killed", "moments"),
    [
        ("sync", 1, ("steps",)),
        further("sync", 1, THROUGH_A_RUN),
        further("async", 2, THROUGH_A_RUN),
    ],
)
def test_workers_that_are_killed_take_part_again(
    update: str, num_killed: int, moments: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    kills = random_kills.workers_killed(
        update, num_killed, moments, random.Random(1), tmp_path, num_steps=60
    )
    # On a busy machine the run may end before a kill at its end.
    before_the_end = tuple(moment for moment in moments if moment != "end")
    assert tuple(kill.moment for kill in kills) in (moments, before_the_end)


@pytest.mark.parametrize("update", chosen(random_kills.UPDATES, ["async"]))
def test_a_launcher_that_is_stopped_ends_by_itself(
    update: str, tmp_path: pathlib.Path
) -> None:
    """It ends before it would be killed, with a checkpoint of its last step."""
    kills_first = update == "sync"
    random_kills.stopped(update, "checkpoint", kills_first, random.Random(2), tmp_path)
    run = tmp_path / "run"
    result = processes.result_of(run)
    assert result["status"] == "preempted"
    assert processes.checkpoints_of(run)[-1] == f"step-{result['steps']:08d}"
