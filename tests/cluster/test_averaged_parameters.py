"""Tests of workers that train copies of the weights and average them."""

import dataclasses
import pathlib
import signal
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow as tf

from strategies.config import StrategyConfig
from tests import processes
from tests.cluster.tasks import cluster
from tests.processes import metrics_of, result_of, train

pytestmark = pytest.mark.cluster

WORKERS = ("--strategy=multi_worker_mirrored", "--average=parameters")
# 64 x 8 + 8 + 8 x 10 + 10, in double precision.
WEIGHT_BYTES = 8 * (64 * 8 + 8 + 8 * 10 + 10)
# 1438 examples in batches of 100: step 15 has 38, which three workers divide unevenly.
SMALL = (
    "--model=mlp",
    "--hidden_units=8",
    "--dtype=float64",
    "--global_batch_size=100",
    "--learning_rate=0.1",
    "--summary_every_steps=1",
    "--set=report.histogram_every_steps=none",
    "--set=report.eval_global_batch_size=70",
)


def variables_of(run: pathlib.Path, step: int, part: str) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a checkpoint by name.

    Args:
      run: Run folder.
      step: Step of the checkpoint.
      part: `variables`, or `replicas` for the state that replicas have in addition.
    """
    saved = tf.train.load_checkpoint(str(run / f"checkpoints/step-{step:08}" / part))
    values = {
        name: saved.get_tensor(name) for name in saved.get_variable_to_shape_map()
    }
    # The description of the objects is text and is left out.
    return {name: v for name, v in values.items() if not isinstance(v, bytes)}


def assert_same_training(
    run: pathlib.Path, reference: pathlib.Path, steps: int, tolerance: float
) -> None:
    """Asserts equal losses at all steps, and equal variables at the end.

    Args:
      run: Run folder to check.
      reference: Run folder of the reference.
      steps: Number of steps.
      tolerance: Largest relative difference of a loss, and of a variable by its norm.
    """
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        got, want = (
            {row["step"]: row[name] for row in metrics_of(path) if name in row}
            for path in (run, reference)
        )
        assert got == pytest.approx(want, rel=tolerance), name
        assert steps in got
    values = variables_of(run, steps, "variables")
    expected = variables_of(reference, steps, "variables")
    assert set(values) == set(expected)
    for name, want in expected.items():
        distance = np.linalg.norm(values[name] - want)
        assert distance <= tolerance * np.linalg.norm(want), name


# test_outer_optimizer.py has workers that average, and continue from a checkpoint.
@pytest.mark.exhaustive
def test_averaged_after_every_step_it_is_one_device(tmp_path: pathlib.Path) -> None:
    """Momentum is linear in gradients: its mean is the momentum of their mean.

    tests/conformance tests it without momentum, on any number of replicas.
    """
    num_workers = 3
    flags = (
        *SMALL,
        *("--optimizer=momentum", "--set=strategy.average_optimizer_state=true"),
        *("--train_steps=20", "--eval_every_steps=7"),
    )
    # A single device has no copies to average.
    train(
        tmp_path / "one",
        *(f for f in flags if f != "--set=strategy.average_optimizer_state=true"),
    )
    several = (f"--num_workers={num_workers}", "--sync_every_steps=1")
    result = train(tmp_path / "run", *WORKERS, *several, *flags)
    # The bound of "the same training" for sgd in double precision, docs/numerics.md.
    assert_same_training(tmp_path / "run", tmp_path / "one", 20, 1e-12)
    sent = 2 * (num_workers - 1) / num_workers * WEIGHT_BYTES
    assert result["communication"]["bytes_per_step_per_replica"] == pytest.approx(
        # The workers send weights and momenta, and the learning rate, which is a
        # variable of the optimizer.
        2 * sent,
        rel=0.01,
    )
    assert result["traits"]["matches_one_device"] is False


@pytest.mark.exhaustive
def test_workers_do_what_replicas_of_one_process_do(tmp_path: pathlib.Path) -> None:
    """The workers stop between two averages and continue with the same masks."""
    flags = (
        *SMALL,
        "--optimizer=momentum",
        "--dropout=0.3",
        "--sync_every_steps=5",
        "--eval_every_steps=4",
    )
    one, run = tmp_path / "one", tmp_path / "run"
    one_process = ("--strategy=parameter_averaging", "--num_replicas=2")
    train(one, *one_process, *flags, "--train_steps=23")
    train(run, *WORKERS, "--num_workers=2", *flags, "--train_steps=12")
    kept = variables_of(run, 12, "replicas").values()
    apart = [copies for copies in kept if copies.shape == (2, 8, 10)]
    # A kernel and its momentum differ between the workers.
    assert len(apart) == 2
    assert not any(np.allclose(*copies, rtol=1e-3) for copies in apart)
    more = ("--train_steps=23", "--resume=auto", "--steps_per_loop=2")
    result = train(run, *WORKERS, "--num_workers=2", *flags, *more)
    # The bound of adam in double precision, because sums have another order.
    assert_same_training(run, one, 23, 1e-10)
    assert result["steps"] == 23
    assert result["examples_seen"] == result_of(one)["examples_seen"]
    assert result["communication"] == {
        "algorithm": "ring all-reduce of weights, every 5 steps",
        "bytes_per_step_per_replica": round(WEIGHT_BYTES / 5),
    }
    done = processes.run("--mode=evaluate", f"--run_dir={run}")
    assert f"loss {result['final']['eval_loss']:.4f}" in done.stdout


def test_they_are_another_training_unless_they_sum_gradients() -> None:
    config = StrategyConfig(strategy="multi_worker_mirrored", average="parameters")
    assert not config.traits.matches_one_device
    assert dataclasses.replace(config, average=None).traits.matches_one_device


@pytest.mark.exhaustive
def test_one_that_diverges_ends_all(tmp_path: pathlib.Path) -> None:
    """A worker's copy has values that are no numbers long before an average is due."""
    flags = ("--optimizer=sgd", "--learning_rate=1e38", "--weight_decay=1e38")
    with cluster(
        tmp_path,
        {"worker": 2},
        *WORKERS,
        *("--model=mlp", "--hidden_units=8", "--sync_every_steps=100"),
        *flags,
    ) as tasks:
        assert tasks.exit_codes() == {"worker-0": 3, "worker-1": 3}
        errors = tasks.error_lines()
        assert "training has diverged" in errors["worker-0"][0]
        assert errors["worker-1"] == []
        assert result_of(tasks.run_dir)["status"] == "diverged"


@pytest.mark.exhaustive
def test_a_signal_to_one_ends_all_after_a_checkpoint_of_all(
    tmp_path: pathlib.Path,
) -> None:
    """Then a lost worker ends the resumed run, which names the worker."""
    flags = (
        *WORKERS,
        *("--model=mlp", "--hidden_units=8", "--train_steps=1000000"),
        *(
            "--sync_every_steps=7",
            "--checkpoint_every_steps=50",
            "--resume=auto",
        ),
    )
    with cluster(tmp_path, {"worker": 2}, *flags) as tasks:
        tasks.wait_for_checkpoint()
        tasks.started["worker-1"].send(signal.SIGTERM)
        assert tasks.exit_codes() == {"worker-0": 143, "worker-1": 143}
        assert tasks.error_lines() == {"worker-0": [], "worker-1": []}
    result = result_of(tasks.run_dir)
    assert result["status"] == "preempted"
    kept = variables_of(tasks.run_dir, result["steps"], "replicas").values()
    # The checkpoint has the replicas' state of this step, not of an earlier one.
    assert result["steps"] in [int(value) for value in kept if value.shape == ()]
    with cluster(tmp_path, {"worker": 2}, *flags) as tasks:
        later = (
            tasks.run_dir / f"checkpoints/step-{result['steps'] // 50 * 50 + 50:08d}"
        )
        tasks.wait_until(later.exists, "the next checkpoint")
        tasks.started["worker-1"].send(signal.SIGKILL)
        assert tasks.exit_codes() == {"worker-0": 138, "worker-1": -signal.SIGKILL}
        (line,) = tasks.error_lines()["worker-0"]
        assert line.startswith(
            f"error: worker-1 at {tasks.address('worker-1')} was lost"
        )
