"""Tests of the measurements that a model is fitted to."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainers.cli import flags
from trainers.experiments.predict.experiments import arms_of, of_an_arm, on_one_device
from trainers.experiments.predict.fitting import measured

WORDS = ("main", "--mode=predict", "--strategies=mirrored,tower", "--replicas=2")


def test_batches_of_all_runs_are_as_large_as_the_model_takes_them_for() -> None:
    """The data set's last batch of 1,024 has 414, and runs of it looked 1.4 x slow."""
    config = flags.parse([*WORDS, "--global_batch_size=1024"])
    runs = [*on_one_device(config)]
    runs += [run for arm in arms_of(config) for run in of_an_arm(arm, num_gpus=0)]
    # The small network has a small batch on data of its own.
    assert all(run.config.drops_last_batch == (run.size != "small") for run in runs)
    # A program reads its batches itself.
    program = flags.parse([*WORDS, "--script=a.py", "--global_batch_size=1024"])
    assert not any(run.config.drops_last_batch for run in on_one_device(program))


@pytest.mark.parametrize(("update", "seconds"), [("sync", 0.02), ("async", 0.05)])
def test_a_step_takes_the_same_time_in_any_batch(update: str, seconds: float) -> None:
    config = flags.parse([*WORDS, f"--update={update}"])
    towers = next(arm for arm in arms_of(config) if arm.name.startswith("tower"))
    times = {"p50": 20.0, "total": 50.0}
    # A program's batches are smaller than 64 on average.
    throughput = {"examples_per_second": 40 / 0.05, "step_milliseconds": times}
    result = {"throughput": throughput, "communication": None}
    executed: Any = SimpleNamespace(run=SimpleNamespace(result=result))
    run = of_an_arm(towers, num_gpus=0)[0]
    assert measured(run, executed).step_seconds == pytest.approx(seconds)
