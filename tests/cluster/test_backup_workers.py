"""Tests of synchronous training with one slow worker."""

import itertools
import pathlib
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import processes
from tests.updates import factories
from trainers.inputs.shuffling import Order
from trainers.run_dir.step_recording import RecordedStep, Recording

pytestmark = pytest.mark.cluster

NUM_WORKERS = 3
FROZEN_SECONDS = 2.5
FLAGS = (
    "--strategy=parameter_server",
    "--update=sync",
    f"--num_workers={NUM_WORKERS}",
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=1000000",
    "--summary_every_steps=5",
    "--set=report.histogram_every_steps=none",
    # An evaluation is divided among all workers, and waits for a suspended one.
    "--eval_every_steps=none",
    # The delay keeps the workers from competing for the machine's few cores.
    "--set=length.step_delay_milliseconds=10",
)


def steps_within(run: pathlib.Path, seconds: float) -> int:
    before = processes.last_step_of(run)
    time.sleep(seconds)
    return processes.last_step_of(run) - before


# Without a backup worker no step is made while a worker is suspended.
@pytest.mark.exhaustive
@pytest.mark.parametrize("backup_workers", [0, 1])
def test_one_backup_worker_restores_the_pace(
    backup_workers: int, tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    flags = (*FLAGS, f"--backup_workers={backup_workers}", f"--run_dir={run}")
    with processes.started(*flags, folder=tmp_path) as launcher:
        processes.wait_until(
            lambda: processes.last_step_of(run) > 20, "its first steps", launcher
        )
        pace = steps_within(run, FROZEN_SECONDS)
        worker = processes.task_of(launcher.pid, "worker", NUM_WORKERS - 1)
        worker.suspend()
        try:
            # Steps that began before it stopped may still be written.
            time.sleep(1)
            pace_without_it = steps_within(run, FROZEN_SECONDS)
        finally:
            worker.resume()
        processes.wait_until(
            lambda: steps_within(run, 0.5) > 0, "steps afterwards", launcher
        )
        launcher.send_signal(signal.SIGTERM)
        ended = processes.end_of(launcher)
    assert ended.returncode == 143, ended.stderr
    assert_can_be_evaluated(run)
    assert_synchronous(run, backup_workers)
    # The speed of a busy machine varies, so half of the pace is enough; without a
    # backup the pace is 0.
    assert pace_without_it > pace / 2 if backup_workers else pace_without_it == 0


def assert_can_be_evaluated(run: pathlib.Path, *flags: str) -> None:
    """Asserts that one process evaluates the run, in spite of cluster flags."""
    done = processes.run("--mode=evaluate", f"--run_dir={run}", *flags)
    assert done.returncode == 0, done.stderr


def assert_synchronous(run: pathlib.Path, backup_workers: int) -> None:
    """Asserts that no update was stale, and that some were dropped with a backup."""
    result = processes.result_of(run)
    assert result["staleness"]["max"] == 0
    assert result["steps"] == result["attempted_steps"]
    assert result["traits"]["synchronous"]
    assert result["traits"]["matches_one_device"] == (backup_workers == 0)
    assert (result["dropped_gradients"] > 0) == (backup_workers > 0)


BATCH_SIZE = 7
# Shares that one update may add up, as batches ahead and index: both shares of its own
# batch, or one of them and the share of the next batch that the third worker computes.
ON_TIME = ((0, 0), (0, 1))
WITH_THE_BACKUP = (((0, 0), (1, 0)), ((0, 1), (1, 0)))
# Bound of the rounding of sums of a few float64 numbers.
TOLERANCE = 1e-12


def test_an_update_is_the_mean_over_the_rows_that_came_in_time(
    tmp_path: pathlib.Path,
) -> None:
    """The update equals Keras's gradient of these rows, whichever worker was late.

    Batches have 7 and 2 rows, so that shares differ in size. A sum that is not scaled
    to its rows would differ, and so would a backup that computes the same rows as
    another worker.
    """
    run = tmp_path / "run"
    user_code = (
        "--model=tests.updates.factories:perceptron",
        "--dataset=tests.updates.factories:quantities",
    )
    flags = (
        *("--strategy=parameter_server", "--update=sync", "--dtype=float64"),
        *(
            f"--num_workers={NUM_WORKERS}",
            "--backup_workers=1",
            "--set=report.record_steps=true",
            "--set=report.replica_statistics=true",
        ),
        *(*user_code, "--train_steps=1000000", "--optimizer=sgd"),
        *("--learning_rate=0.1", f"--global_batch_size={BATCH_SIZE}"),
        *("--summary_every_steps=1", "--set=report.histogram_every_steps=none"),
        *("--checkpoint_every_steps=none", "--set=length.step_delay_milliseconds=10"),
        # An evaluation is divided among all workers, and waits for a suspended one.
        *("--eval_every_steps=none", f"--run_dir={run}"),
        # On a busy machine six steps may take longer than the 10 s of the default.
        "--set=strategy.peer_timeout_seconds=120",
    )
    with processes.started(*flags, folder=tmp_path) as launcher:
        # Any of the three may be the backup, whose share counts once another worker is
        # suspended.
        for index in range(NUM_WORKERS):
            wait_for_steps(run, 3, launcher)
            worker = processes.task_of(launcher.pid, "worker", index)
            worker.suspend()
            try:
                wait_for_steps(run, 6, launcher)
            finally:
                worker.resume()
        launcher.send_signal(signal.SIGTERM)
        ended = processes.end_of(launcher)
    assert ended.returncode == 143, ended.stderr
    recording = Recording(run)
    steps = [recording.read(n + 1) for n in range(recording.num_steps())]
    taken = [
        shares_taken(number, before, step)
        for number, (before, step) in enumerate(itertools.pairwise(steps), start=1)
    ]
    assert sum(shares in WITH_THE_BACKUP for shares in taken) >= 6
    assert_losses_of_two_replicas(run)
    assert_can_be_evaluated(run, *user_code)
    assert_synchronous(run, backup_workers=1)


def assert_losses_of_two_replicas(run: pathlib.Path) -> None:
    """Asserts that each line has losses of the two workers that came in time."""
    names = [
        [name for name in row if name.startswith("replica/loss_")]
        for row in processes.metrics_of(run)
    ]
    assert {*map(len, names)} == {2}
    every = {f"replica/loss_{index}" for index in range(NUM_WORKERS)}
    assert {*itertools.chain(*names)} == every


def wait_for_steps(run: pathlib.Path, number: int, launcher) -> None:
    step = processes.last_step_of(run)
    processes.wait_until(
        lambda: processes.last_step_of(run) >= step + number, "steps", launcher
    )


def shares_taken(
    number: int, before: RecordedStep, step: RecordedStep
) -> tuple[tuple[int, int], ...]:
    """Returns the shares that an update added up, as batches ahead and index.

    Args:
      number: Number of the step before the update.
      before: Recorded step before, with the weights of the update's gradients.
      step: Recorded step of the update.
    """
    model = factories.perceptron()
    for variable in model.trainable_variables:
        variable.assign(before.weights[variable.path])
    paths = [variable.path for variable in model.trainable_variables]
    found = np.concatenate([np.ravel(step.gradients[path]) for path in paths])
    for shares in (ON_TIME, *WITH_THE_BACKUP):
        rows = np.concatenate([rows_of(number + ahead, at) for ahead, at in shares])
        expected = gradient_of_mean(model, rows)
        if np.linalg.norm(found - expected) <= TOLERANCE * np.linalg.norm(expected):
            return shares
    raise AssertionError(f"update {number + 1} is the mean over no two shares")


def rows_of(batch: int, shard_index: int) -> np.ndarray:
    """Returns the rows of a share; the first has one row more of an odd number."""
    order = Order(
        num_examples=factories.NUM_EXAMPLES, global_batch_size=BATCH_SIZE, seed=0
    )
    indices, _, size = order.indices(tf.constant(batch, tf.int64), 0, 1)
    middle = -(-int(size) // 2)
    return indices.numpy()[:middle] if shard_index == 0 else indices.numpy()[middle:]


def gradient_of_mean(model: keras.Model, rows: np.ndarray) -> np.ndarray:
    (features, labels), _ = factories.quantities()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        value = loss(labels[rows], model(features[rows], training=True))
    gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


@pytest.fixture(autouse=True)
def double_precision() -> None:
    """Sets the precision of the models that this process compares with."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
