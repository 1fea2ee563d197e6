"""report.profile_steps leaves a trace of those steps, as the plugin reads it."""

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from strategies.common.errors import UsageError
from tests.markers import further
from tests.processes import train
from trainers.config.config import Config
from trainers.loop.loop import When, at

SMALL = (
    *("--model=mlp", "--hidden_units=8", "--train_steps=30", "--steps_per_loop=5"),
    # XLA would make one program of all operations.
    "--jit_compile=off",
)


def traces(run_dir: pathlib.Path) -> list[xplane_pb2.XSpace]:
    found = (run_dir / "tb" / "train" / "plugins" / "profile").glob("*/*.xplane.pb")
    return [xplane_pb2.XSpace.FromString(path.read_bytes()) for path in found]


def times_seen(trace: xplane_pb2.XSpace, part: str) -> int:
    """Returns the number of events whose names contain this part."""
    return sum(
        part in plane.event_metadata[event.metadata_id].name
        for plane in trace.planes
        for line in plane.lines
        for event in line.events
    )


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [
        ("one_device", 1),
        further("mirrored", 2),
        # Of two processes the chief's.
        further("multi_worker_mirrored", 1),
    ],
)
def test_a_trace_has_the_steps_and_no_others(
    strategy: str, replicas: int, tmp_path: pathlib.Path
) -> None:
    # An evaluation between two steps would add its losses to the trace.
    flags = (*SMALL, "--eval_every_steps=none", "--set=report.profile_steps=7,13")
    train(tmp_path / "run", f"--strategy={strategy}", *flags)
    (trace,) = traces(tmp_path / "run")
    # Once a step on every replica, and the profiler leaves none out.
    assert times_seen(trace, ":SparseSoftmaxCrossEntropyWithLogits") == 6 * replicas


# The end of a run ends a trace, as its second step does.
@pytest.mark.exhaustive
def test_a_run_that_ends_before_writes_what_there_is_and_is_the_same(
    tmp_path: pathlib.Path,
) -> None:
    """The other run ends before its first step to trace."""
    one = train(tmp_path / "one", *SMALL, "--set=report.profile_steps=20,50")
    (trace,) = traces(tmp_path / "one")
    assert times_seen(trace, "MatMul") >= 10
    other = train(tmp_path / "other", *SMALL, "--set=report.profile_steps=40,50")
    assert traces(tmp_path / "other") == []
    assert one["weights_sha256"] == other["weights_sha256"]


# A resumed run traces as any other, from a step that is after the first one.
@pytest.mark.exhaustive
def test_a_run_that_is_resumed_between_the_two_steps_has_none(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "run"
    flags = (*SMALL, "--set=report.profile_steps=10,20")
    train(path, *flags, "--train_steps=15")
    (folder,) = (path / "tb" / "train" / "plugins" / "profile").iterdir()
    train(path, *flags, "--train_steps=40", "--resume=auto")
    # The trace of the steps from the first one to the end before.
    (still,) = (path / "tb" / "train" / "plugins" / "profile").iterdir()
    assert still == folder


@pytest.mark.parametrize("steps", [(5,), (5, 5), (9, 5), (1, 2, 3)])
def test_other_than_two_steps_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="give two steps, the first and a later one"):
        Config().replace(profile_steps=steps)


def test_calls_end_at_the_steps_of_a_hook() -> None:
    when = When(lambda report: None, at((7, 13)))
    assert [when.next_after(step, 30) for step in (0, 6, 7, 12, 13, 20)] == [
        *(7, 7, 13, 13, 30, 30)
    ]
    assert when.next_after(8, 10) == 10
    events: list[Any] = [
        SimpleNamespace(step=step, is_last=step == 15) for step in range(1, 16)
    ]
    assert [event.step for event in events if when.is_due(event)] == [7, 13, 15]
