"""Tests of workers that send approximate gradients to parameter servers."""

import copy
import pathlib
import signal
from collections.abc import Sequence

import numpy as np
import pytest

from tests import processes
from tests.cluster import linear_loss
from tests.cluster.compressed_sums import (
    Method,
    OneWay,
    PowerSgd,
    TopK,
    rounded_once,
)
from tests.cluster.test_averaged_parameters import assert_same_training, variables_of
from tests.cluster.test_emulated_bandwidth import needs_networks, training
from tests.cluster.test_gradient_compression import (
    LINEAR,
    OVERFLOWING,
    WORKERS,
    assert_error_feedback,
    assert_nothing_is_lost_by_overflows,
)
from tests.markers import chosen, further
from tests.processes import NO_EVALUATION, metrics_so_far, result_of, train

pytestmark = pytest.mark.cluster

SERVERS = ("--strategy=parameter_server", "--update=sync", "--num_workers=2")


def on_servers(flags: Sequence[str]) -> tuple[str, ...]:
    return (*SERVERS, *(flag for flag in flags if flag not in WORKERS))


# Bytes of all weights in double precision, which every worker reads.
WEIGHT_BYTES = 8 * sum(linear_loss.SIZES.values())
# By setting: the method of each tensor, and the bytes that a worker sends in a step.
METHODS: dict[str, tuple[dict[str, Method], int]] = {
    "powersgd:3": (
        {
            "matrix": OneWay([PowerSgd(3, 30, seed=0) for _ in range(2)]),
            "kernel": OneWay([PowerSgd(3, 10, seed=2) for _ in range(2)]),
        },
        8 * (3 * (20 + 30 + 36 + 10) + 30),
    ),
    # Three blocks and two blocks, each with 256 numbers and a scale.
    "int8": (
        dict.fromkeys(("matrix", "kernel"), rounded_once),
        5 * (256 + 4) + 8 * 30,
    ),
    "topk:0.06": (
        {name: TopK(0.06) for name in linear_loss.SHAPES},
        12 * (36 + 2 + 22),
    ),
}


@pytest.mark.parametrize("num_servers", [1, further(2)])
# Workers choose the largest values as those of test_gradient_compression.py do.
@pytest.mark.parametrize("setting", chosen(METHODS, ["powersgd:3", "int8"]))
def test_sums_and_errors_are_those_of_the_papers(
    setting: str, num_servers: int, tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    # An evaluation ends the workers' loops, which then continue with their errors.
    result = train(
        run,
        *on_servers(LINEAR),
        *("--eval_every_steps=3", f"--num_ps={num_servers}"),
        f"--gradient_compression={setting}",
    )
    # The copy is needed because a method keeps its basis from step to step.
    methods, sent_bytes = copy.deepcopy(METHODS[setting])
    assert_error_feedback(run, methods)
    communication = result["communication"]
    assert communication["bytes_per_step_per_replica"] == WEIGHT_BYTES + sent_bytes
    assert communication["algorithm"].startswith("weights read from and gradients sent")
    assert result["traits"]["matches_one_device"] is False


SMALL = (
    *SERVERS,
    *("--model=mlp", "--hidden_units=64,32", "--summary_every_steps=1"),
    "--set=report.histogram_every_steps=none",
)


@pytest.mark.exhaustive
def test_a_compression_that_loses_nothing_changes_nothing(
    tmp_path: pathlib.Path,
) -> None:
    flags = (*SMALL, "--dtype=float64", "--train_steps=12", "--global_batch_size=4")
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(whole, *flags)
    result = train(run, *flags, "--gradient_compression=topk:1")
    assert_same_training(run, whole, 12, 1e-10)
    # A sum of two workers has only one order.
    assert result["weights_sha256"] == result_of(whole)["weights_sha256"]


def errors_at(run: pathlib.Path, step: int) -> np.ndarray:
    """Returns each worker's error of the first layer's gradient, [2, 64, 64]."""
    (errors,) = (
        v
        for v in variables_of(run, step, "replicas").values()
        if v.shape[1:] == (64, 64)
    )
    return errors


# The test above reads the errors of a checkpoint, and test_gradient_compression.py
# continues a run with the errors of a checkpoint.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["powersgd:2", "int8", "topk:.1"])
def test_a_stopped_run_continues_to_the_same_bits(
    setting: str, tmp_path: pathlib.Path
) -> None:
    flags = (
        *(*SMALL, "--dropout=0.2", f"--gradient_compression={setting}"),
        *("--train_steps=14", "--checkpoint_every_steps=9"),
    )
    whole, run = tmp_path / "whole", tmp_path / "run"
    # Without evaluations the errors reach the servers only for a checkpoint.
    expected = train(whole, *flags, "--eval_every_steps=none")
    processes.copy_up_to(9, whole, run)
    assert not np.allclose(*errors_at(run, 9))
    continued = train(run, *flags, "--resume=auto", "--steps_per_loop=2")
    assert continued["weights_sha256"] == expected["weights_sha256"]
    losses = [processes.train_losses_of(path) for path in (run, whole)]
    assert losses[0] == losses[1]
    assert np.array_equal(errors_at(run, 14), errors_at(whole, 14))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_another_number_of_workers_continues_without_errors(
    tmp_path: pathlib.Path,
) -> None:
    flags, run = (*SMALL, "--gradient_compression=int8"), tmp_path / "run"
    train(run, *flags, "--train_steps=5")
    train(run, *flags, "--num_workers=3", "--train_steps=10", "--resume=auto")
    errors = errors_at(run, 10)
    assert len(errors) == 3
    assert all(np.abs(errors).max(axis=(1, 2)) > 0)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_worker_begins_without_an_error(tmp_path: pathlib.Path) -> None:
    flags = (
        *SMALL,
        *("--gradient_compression=powersgd:2", "--train_steps=30"),
        *("--checkpoint_every_steps=5", *NO_EVALUATION),
        *("--set=length.step_delay_milliseconds=50", "--steps_per_loop=1"),
    )
    run = tmp_path / "run"
    with processes.started(f"--run_dir={run}", *flags, folder=tmp_path) as launcher:
        processes.wait_until(
            lambda: processes.last_step_of(run) >= 8, "step 8", launcher
        )
        processes.task_of(launcher.pid, "worker", 1).send_signal(signal.SIGKILL)
        done = processes.end_of(launcher)
    assert done.returncode == 0, done.stderr
    result = result_of(run)
    assert (result["status"], result["steps"]) == ("completed", 30)
    errors = errors_at(run, 30)
    assert np.isfinite(errors).all()
    assert all(np.abs(errors).max(axis=(1, 2)) > 0)


@pytest.mark.parametrize("setting", ["topk:0.1", further("powersgd:1")])
def test_an_overflow_leaves_nothing_behind(
    setting: str, tmp_path: pathlib.Path
) -> None:
    train(
        tmp_path / "run",
        *on_servers(OVERFLOWING),
        f"--gradient_compression={setting}",
    )
    assert_nothing_is_lost_by_overflows(tmp_path / "run")


@needs_networks
@pytest.mark.slow
@pytest.mark.exhaustive
def test_bytes_on_the_wire_are_those_of_the_formula(tmp_path: pathlib.Path) -> None:
    flags = (
        *SERVERS,
        *("--model=mlp", "--hidden_units=1024,1024", "--global_batch_size=8"),
        *("--emulated_bandwidth_mbit=10000", "--gradient_compression=int8"),
        *("--train_steps=1000000", "--steps_per_loop=1", "--summary_every_steps=1"),
        *("--checkpoint_every_steps=1000000", "--eval_every_steps=1000000"),
        "--set=report.histogram_every_steps=none",
    )

    def step() -> int:
        return metrics_so_far(tmp_path / "run")[-1]["step"]

    with training(tmp_path, *flags) as running:
        first, before = step(), running.counters()
        processes.wait_until(lambda: step() >= first + 60, "60 steps", running.launcher)
        last, after = step(), running.counters()
        running.launcher.send_signal(signal.SIGTERM)
        done = processes.end_of(running.launcher)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    weights = 4 * (65 * 1024 + 1025 * 1024 + 1025 * 10)
    communication = result_of(running.folder)["communication"]
    sent = communication["bytes_per_step_per_replica"] - weights
    assert sent < 0.27 * weights
    for task in ("worker-0", "worker-1"):
        got = (after[task, "sent"] - before[task, "sent"]) / (last - first)
        # One step more or less at both ends is 4 %. Headers of packets are 5 %, and
        # acknowledgements of received weights 3 % of their bytes.
        assert 0.96 * sent < got < 1.12 * sent + 0.04 * weights, (task, got, sent)


def test_what_compresses_nothing_is_refused(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    done = processes.run(
        *(*SERVERS, "--model=mlp", "--hidden_units=64,32", f"--run_dir={run}"),
        "--gradient_compression=powersgd:64",
        folder=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: --gradient_compression=powersgd:64 compresses no gradient of this "
        "model: lower the rank to at most 31, or leave it out."
    ]
    assert list(tmp_path.iterdir()) == []
