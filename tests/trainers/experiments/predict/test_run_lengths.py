"""Tests of the number of steps of short runs."""

from trainers.cli import flags
from trainers.experiments.predict.experiments import (
    Experiment,
    arms_of,
    of_an_arm,
    on_one_device,
)
from trainers.experiments.predict.run_lengths import RunLengths

CONFIG = flags.parse(
    ["main", "--mode=predict", "--strategies=mirrored", "--replicas=2"]
)
(ARM,) = arms_of(CONFIG)
RUNS = (*on_one_device(CONFIG), *of_an_arm(ARM, num_gpus=0))
FIRST = RUNS[0].name


def _steps(milliseconds: dict[str, float]) -> dict[str, int]:
    """Returns the number of steps of each run by name.

    Args:
      milliseconds: Step time by size, or by size and number of replicas.
    """
    lengths, found = RunLengths(), {}
    for planned in RUNS:
        run = lengths.limited(planned)
        assert run.name == planned.name
        found[run.name] = run.config.length.train_steps or 0
        step = milliseconds.get(f"{run.size}-{run.num_replicas}")
        lengths.add(run, 1e-3 * (step or milliseconds[run.size]))
    return found


def test_many_short_steps_are_measured() -> None:
    found = _steps({"own": 2.0, "ballast": 4.0, "small": 1.0})
    assert set(found.values()) == {300}


def test_runs_of_long_steps_take_three_seconds() -> None:
    found = _steps(
        {"own": 20.0, "own-3": 25.0, "own-4": 40.0, "ballast": 30.0, "small": 1.0}
    )
    assert found[FIRST] == 300, "nothing is known before"
    assert found["one_device-1-of-16"] == found["one_device-as_asked-1-of-64"] == 150
    # Replicas share cores: twice as many are expected to take twice as long.
    assert found["mirrored-2-of-64"] == 75
    assert found["mirrored-2-of-64-ballast"] == 150
    assert found["mirrored-3-of-64"] == int(3 / 0.03)
    assert found["mirrored-4-of-64"] == int(3 / (0.025 * 4 / 3))
    assert found["mirrored-4-of-32"] == 75
    # With four replicas the same network took twice as long.
    assert found["mirrored-4-of-64-ballast"] == 50
    assert found["mirrored-4-of-64-small"] == 300


def test_a_median_is_that_of_some_steps() -> None:
    found = _steps({"own": 2_000.0, "ballast": 2_000.0, "small": 1.0})
    assert found.pop(FIRST) == 300
    assert {s for n, s in found.items() if not n.endswith("small")} == {24}
    assert {s for n, s in found.items() if n.endswith("small")} == {300}


def test_no_run_is_longer_than_asked() -> None:
    lengths = RunLengths()
    asked = [
        Experiment(run.arm, 2, run.config.replace(train_steps=steps))
        for run in RUNS[-1:]
        for steps in (20, None)
    ]
    lengths.add(asked[0], 0.01)
    assert [lengths.limited(run) for run in asked] == asked
