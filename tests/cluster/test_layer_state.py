"""Tests of moving statistics under every way of updating, as real processes."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.processes import train

# test_clusters.py trains this model with asynchronous workers, and another one with
# synchronous workers. tests/conformance/test_layer_state.py has the strategies of one
# process, also with overlapping updates.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive]

NUM_STEPS = 460
FLAGS = (
    "--model=tests.trainers.user_code.factories:normalized",
    "--dataset=tests.trainers.user_code.factories:blobs",
    f"--train_steps={NUM_STEPS}",
    "--global_batch_size=32",
    "--learning_rate=0.05",
    "--eval_every_steps=none",
)
TWO_WORKERS = ("--num_workers=2",)
# One device predicts 0.92 of 300 examples right, a guess 0.33. Stale updates may end at
# another accuracy: two standard deviations of the difference are 0.044.
ACCURACY, MARGIN = 0.92, 0.05
# Each of 460 updates rounds twice to 24 bits, in the worst case in the same direction.
ROUNDING = NUM_STEPS * 2 * 2.0**-24
# Ways of updating. With parameter_averaging each replica has its own moving average,
# with as many updates.
WAYS = [
    ("--strategy=one_device",),
    ("--strategy=tower", "--update=async", "--num_replicas=2"),
    ("--strategy=parameter_server", "--update=async", "--num_ps=2", *TWO_WORKERS),
    ("--strategy=tower", "--update=sync", "--num_replicas=2"),
    ("--strategy=mirrored", "--num_replicas=2"),
    ("--strategy=parameter_averaging", "--num_replicas=2"),
    ("--strategy=parameter_server", "--update=sync", *TWO_WORKERS),
    ("--strategy=multi_worker_mirrored", *TWO_WORKERS),
]


def moving_variances(folder: pathlib.Path) -> dict[int, np.ndarray]:
    """Returns the moving variances of the last checkpoint, by their length."""
    path = str(folder / f"checkpoints/step-{NUM_STEPS:08}/variables")
    saved = tf.train.load_checkpoint(path)
    values = [
        saved.get_tensor(name)
        for name in saved.get_variable_to_shape_map()
        if "moving_variance" in name
    ]
    return {len(value): value for value in values}


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_every_update_counts_in_moving_statistics(
    way: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    result = train(tmp_path / "run", *way, *FLAGS)
    assert_every_update_counts(tmp_path / "run", result)


def assert_every_update_counts(run: pathlib.Path, result: Mapping[str, Any]) -> None:
    """Asserts that a run with the flags `FLAGS` has learned and lost no update."""
    assert result["steps"] == NUM_STEPS
    variances = moving_variances(run)
    expected = np.full(2, 0.99**NUM_STEPS)
    np.testing.assert_allclose(variances[2], expected, rtol=ROUNDING)
    # Features vary by 4 within a class and by 10 / 3 x sqrt(2) between classes.
    np.testing.assert_allclose(variances[3], 16 + 22.2, rtol=0.15)
    assert result["final"]["eval_accuracy"] == pytest.approx(ACCURACY, abs=MARGIN)
