"""Tests of workers that each have a part of the optimizer's state."""

import pathlib

import numpy as np
import pytest

from tests import processes
from tests.cluster.test_averaged_parameters import assert_same_training, variables_of
from tests.processes import result_of, train

pytestmark = pytest.mark.cluster

WORKERS = ("--strategy=multi_worker_mirrored", "--shard_optimizer_state")
# 1438 examples in batches of 100: step 15 has 38, which three workers divide unevenly.
# One weight has nearly all elements: 64 x 40.
SMALL = (
    "--model=mlp",
    "--hidden_units=40",
    "--dtype=float64",
    "--global_batch_size=100",
    "--summary_every_steps=1",
    "--set=report.histogram_every_steps=7",
    "--set=report.eval_global_batch_size=70",
    "--jit_compile=off",
)
ADAMW = (
    *("--optimizer=adamw", "--weight_decay=0.05", "--learning_rate=0.003"),
    *("--learning_rate_schedule=cosine", "--warmup_steps=5"),
    # The limit is below every gradient norm of these runs, so that every step clips.
    *("--clip_global_norm=0.05", "--gradient_accumulation_steps=2"),
)
NUM_STEPS = 24
FLAGS = (
    *(*SMALL, *ADAMW, f"--train_steps={NUM_STEPS}", "--eval_every_steps=12"),
    "--checkpoint_every_steps=9",
)
# The bound of "the same training" for adamw in double precision, docs/numerics.md.
BOUND = 1e-10


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("one_device") / "run"
    train(folder, *FLAGS)
    return folder


@pytest.fixture(scope="module")
def three_workers(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("three_workers") / "run"
    train(folder, *WORKERS, "--num_workers=3", *FLAGS)
    return folder


def test_parts_of_three_workers_are_one_device(
    three_workers: pathlib.Path, one_device: pathlib.Path
) -> None:
    """Every loss, weight and variable of the optimizer is as on one device."""
    assert_same_training(three_workers, one_device, NUM_STEPS, BOUND)
    result, reference = result_of(three_workers), result_of(one_device)
    whole = reference["optimizer_state_bytes"]
    assert result["optimizer_state_bytes"] == pytest.approx(whole / 3, rel=0.05)
    # A reduce-scatter and an all-gather send two thirds of the weights each, in total
    # as many as an all-reduce.
    sent = 2 * 2 / 3 * 8 * (64 * 40 + 40 + 40 * 10 + 10)
    assert result["communication"]["bytes_per_step_per_replica"] == round(sent)
    assert result["traits"]["matches_one_device"] is True


@pytest.mark.exhaustive
def test_a_run_resumes_to_the_bit(tmp_path: pathlib.Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    flags = (
        *(*WORKERS, "--num_workers=2", *SMALL),
        *("--optimizer=adam", "--eval_every_steps=6"),
    )
    undisturbed = train(whole, *flags, "--train_steps=20")
    train(run, *flags, "--train_steps=11")
    result = train(run, *flags, "--train_steps=20", "--resume=auto")
    assert result["weights_sha256"] == undisturbed["weights_sha256"]


def test_checkpoints_are_those_of_any_strategy(
    three_workers: pathlib.Path, one_device: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A run continues from parts with the whole state, and then with other parts."""
    before = three_workers
    two_workers = (*WORKERS, "--num_workers=2")
    for strategy, step in ((("--strategy=one_device",), 9), (two_workers, 18)):
        run = tmp_path / f"from-{step}"
        processes.copy_up_to(step, before, run)
        done = processes.run(f"--run_dir={run}", *strategy, *FLAGS, "--resume=auto")
        assert done.returncode == 0, done.stderr
        assert f"continued at step {step}" in done.stdout
        before = run
    values, expected = (
        variables_of(path, NUM_STEPS, "variables") for path in (before, one_device)
    )
    assert set(values) == set(expected)
    for name, want in expected.items():
        distance = np.linalg.norm(values[name] - want)
        assert distance <= BOUND * np.linalg.norm(want), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad"])
def test_each_optimizer_of_flags(tmp_path: pathlib.Path, optimizer: str) -> None:
    one, run = tmp_path / "one", tmp_path / "run"
    flags = (
        *(*SMALL, f"--optimizer={optimizer}", "--train_steps=20"),
        *("--learning_rate=0.01", "--weight_decay=0.01", "--eval_every_steps=7"),
    )
    train(one, *flags)
    train(run, *WORKERS, "--num_workers=2", *flags)
    # For sgd docs/numerics.md promises 1e-12; Adagrad divides by small numbers.
    assert_same_training(run, one, 20, 1e-10 if optimizer == "adagrad" else 1e-12)


@pytest.mark.exhaustive
def test_a_scaled_loss_is_the_same_scaled_loss(tmp_path: pathlib.Path) -> None:
    """Layer state and the variables of the scale are whole on every worker."""
    flags = (
        *("--model=convnet", "--dtype=mixed_float16", "--optimizer=momentum"),
        *("--learning_rate=0.05", "--global_batch_size=100", "--train_steps=12"),
        *("--summary_every_steps=1", "--eval_every_steps=none"),
    )
    workers = ("--strategy=multi_worker_mirrored", "--num_workers=2")
    plain, run = tmp_path / "plain", tmp_path / "run"
    train(plain, *workers, *flags)
    train(run, *workers, "--shard_optimizer_state", *flags)
    scales = [
        [row["train_loss_scale"] for row in processes.metrics_of(path)[:12]]
        for path in (plain, run)
    ]
    # The row of the evaluation follows the 12 rows of steps.
    assert scales[0] == scales[1]
    # Two numbers are added the same way by a ring and by parts: the training differs
    # only by what vectorized kernels round at other positions, in single precision.
    assert_same_training(run, plain, 12, 1e-5)


@pytest.mark.exhaustive
def test_one_worker_has_the_whole(tmp_path: pathlib.Path) -> None:
    flags = (*SMALL, "--optimizer=adam", "--train_steps=5", "--eval_every_steps=none")
    result = train(tmp_path / "run", *WORKERS, "--num_workers=1", *flags)
    reference = train(tmp_path / "one", *flags)
    assert result["optimizer_state_bytes"] == reference["optimizer_state_bytes"]


@pytest.mark.exhaustive
def test_diverged_steps_change_nothing(tmp_path: pathlib.Path) -> None:
    """A number that is not finite on one worker keeps all from applying their parts."""
    run = tmp_path / "run"
    flags = ("--model=mlp", "--hidden_units=8", "--optimizer=sgd")
    done = processes.run(
        *(f"--run_dir={run}", *WORKERS, "--num_workers=2", *flags),
        *("--learning_rate=1e30", "--train_steps=50", "--checkpoint_every_steps=1"),
    )
    assert done.returncode == 3, done.stderr
    assert "training has diverged" in done.stderr
    assert result_of(run)["status"] == "diverged"
