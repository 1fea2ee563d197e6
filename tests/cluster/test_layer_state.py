"""Tests of moving statistics under every way of updating, as real processes."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.markers import further
from tests.processes import train

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NUM_STEPS = 460
FLAGS = (
    "--model=tests.trainers.user_code.factories:normalized",
    "--dataset=tests.trainers.user_code.factories:blobs",
    f"--train_steps={NUM_STEPS}",
    "--global_batch_size=32",
    "--learning_rate=0.05",
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
    further(("--strategy=one_device",)),
    # tests/conformance/test_layer_state.py has towers with overlapping updates.
    further(("--strategy=tower", "--update=async", "--num_replicas=2")),
    ("--strategy=parameter_server", "--update=async", *TWO_WORKERS),
    further(
        ("--strategy=parameter_server", "--update=async", "--num_ps=2", *TWO_WORKERS)
    ),
    further(("--strategy=tower", "--update=sync", "--num_replicas=2")),
    further(("--strategy=mirrored", "--num_replicas=2")),
    further(("--strategy=parameter_averaging", "--num_replicas=2")),
    further(("--strategy=parameter_server", "--update=sync", *TWO_WORKERS)),
    further(("--strategy=multi_worker_mirrored", *TWO_WORKERS)),
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
    assert result["steps"] == NUM_STEPS
    variances = moving_variances(tmp_path / "run")
    expected = np.full(2, 0.99**NUM_STEPS)
    np.testing.assert_allclose(variances[2], expected, rtol=ROUNDING)
    # Features vary by 4 within a class and by 10 / 3 x sqrt(2) between classes.
    np.testing.assert_allclose(variances[3], 16 + 22.2, rtol=0.15)
    assert result["final"]["eval_accuracy"] == pytest.approx(ACCURACY, abs=MARGIN)
