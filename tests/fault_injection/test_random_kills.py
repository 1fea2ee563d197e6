"""Tests of killed workers of parameter servers and of stopped launchers."""

from __future__ import annotations

import pathlib
import random

import pytest

from tests.fault_injection.scenarios import random_kills
from tests.markers import chosen

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize("update", chosen(random_kills.UPDATES, ["sync"]))
def test_workers_that_are_killed_take_part_again(
    update: str, tmp_path: pathlib.Path
) -> None:
    moments = ("start", "steps", "end")
    num_killed = {"sync": 1, "async": 2}[update]
    kills = random_kills.workers_killed(
        update, num_killed, moments, random.Random(1), tmp_path, num_steps=60
    )
    # On a busy machine the run may end before the kill at its end.
    assert tuple(kill.moment for kill in kills) in (moments, moments[:-1])


@pytest.mark.parametrize("update", chosen(random_kills.UPDATES, ["async"]))
def test_a_launcher_that_is_stopped_ends_by_itself(
    update: str, tmp_path: pathlib.Path
) -> None:
    """It ends before it would be killed, with a checkpoint of its last step."""
    kills_first = update == "sync"
    random_kills.stopped(update, "checkpoint", kills_first, random.Random(2), tmp_path)
