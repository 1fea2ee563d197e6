"""Checks that clocks inside of steps change no bit, and that their times add up."""

import pathlib

import pytest

from tests import processes
from tests.markers import further
from trainers.experiments.explain.breakdown import (
    PHASES,
    WITHIN_A_STEP,
    read_breakdown,
)

# The bound is more than rounding of the clock, and less than a missing phase.
TOLERANCE = 0.05

# These repeat a computation that others test, so only the exhaustive suite runs them.
_ONLY_EXHAUSTIVE = pytest.mark.exhaustive

IN_ONE_PROCESS = [
    pytest.param(
        ("--strategy=one_device", "--jit_compile=off"),
        id="one_device",
        marks=_ONLY_EXHAUSTIVE,
    ),
    pytest.param(("--strategy=mirrored",), id="mirrored", marks=_ONLY_EXHAUSTIVE),
    pytest.param(("--strategy=model_parallel",), id="model_parallel"),
    pytest.param(
        ("--strategy=one_device", "--jit_compile=on"),
        id="one_device-compiled",
        marks=_ONLY_EXHAUSTIVE,
    ),
    pytest.param(("--strategy=tower",), id="tower", marks=_ONLY_EXHAUSTIVE),
    pytest.param(
        ("--strategy=parameter_averaging",),
        id="parameter_averaging",
        marks=_ONLY_EXHAUSTIVE,
    ),
]
WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")
IN_SEVERAL = [
    pytest.param(WORKERS, id="multi_worker_mirrored", marks=_ONLY_EXHAUSTIVE),
    # Three numbers can be added in several orders.
    pytest.param(
        ("--strategy=multi_worker_mirrored", "--num_workers=3"),
        id="three-workers",
        marks=_ONLY_EXHAUSTIVE,
    ),
    pytest.param(
        (
            *("--strategy=multi_worker_mirrored", "--num_workers=2"),
            "--average=parameters",
        ),
        id="averaged-parameters",
        marks=_ONLY_EXHAUSTIVE,
    ),
    pytest.param(
        ("--strategy=parameter_server", "--update=sync", "--num_workers=2"),
        id="parameter_server-sync",
        marks=_ONLY_EXHAUSTIVE,
    ),
]
TIMED = [
    WORKERS,
    # These do not train the same twice.
    further(("--strategy=tower", "--update=async")),
    further(("--strategy=parameter_server", "--num_workers=2", "--num_ps=1")),
]


def train(folder: pathlib.Path, flags: tuple[str, ...], phases: bool) -> pathlib.Path:
    run = folder / f"phases-{phases}".lower()
    processes.train(
        run,
        *flags,
        *("--model=mlp", "--hidden_units=16", "--train_steps=30"),
        *("--summary_every_steps=1", "--steps_per_loop=5"),
        *(*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none"),
        f"--set=report.step_phases={str(phases).lower()}",
    )
    return run


def check_sums(run: pathlib.Path) -> None:
    """Asserts that the phases of each replica add up to the wall time."""
    breakdown = read_breakdown(run)
    for replica in breakdown.replicas:
        assert replica.share(*PHASES) == pytest.approx(1, abs=TOLERANCE)
        assert sum(replica.seconds[p] for p in WITHIN_A_STEP) > 0


def check_bits(folder: pathlib.Path, flags: tuple[str, ...]) -> None:
    """Asserts that a run with clocks has the losses and weights of a run without."""
    with_clocks, without = (train(folder, flags, phases) for phases in (True, False))
    runs = (with_clocks, without)
    losses = [processes.train_losses_of(run) for run in runs]
    assert losses[0] == losses[1]
    digests = [processes.result_of(run)["weights_sha256"] for run in runs]
    assert digests[0] == digests[1]
    assert not (without / "step_phases").exists()
    check_sums(with_clocks)


@pytest.mark.slow
@pytest.mark.parametrize("flags", IN_ONE_PROCESS)
def test_a_process_trains_the_same(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    check_bits(tmp_path, flags)


@pytest.mark.cluster
@pytest.mark.parametrize("flags", IN_SEVERAL)
def test_a_cluster_trains_the_same(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    check_bits(tmp_path, flags)


@pytest.mark.cluster
@pytest.mark.parametrize("flags", TIMED, ids=" ".join)
def test_times_of_steps_add_up(flags: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    check_sums(train(tmp_path, flags, phases=True))
