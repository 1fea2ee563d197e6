"""Programs with weights in float16, whose gradients have large sums."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.markers import further
from tests.trainers.keras_program.beside_fit import by_fit, under

_TEXT = """
import keras
import numpy as np

keras.config.set_dtype_policy("float16")
x = np.ones((32, 1000), "float16")
y = np.zeros((32, 100), "float16")
initial = {
    "kernel_initializer": "zeros",
    "bias_initializer": keras.initializers.Constant(50.0),
}
model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(100, **initial)])
model.compile(keras.optimizers.SGD(1e-4), "mse")
model.fit(x, y, batch_size=16, epochs=1)
"""


@pytest.mark.parametrize(
    "flags",
    [
        further(("--strategy=one_device",)),
        (
            *("--strategy=multi_worker_mirrored", "--num_workers=2"),
            "--shard_optimizer_state",
        ),
    ],
)
def test_gradients_whose_sum_is_too_large_are_applied(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    """100,000 numbers of 1 add up to more than the largest number in float16."""
    (found,) = under(tmp_path, _TEXT, *flags)
    (plain,) = by_fit(tmp_path, _TEXT)
    for weights, expected in zip(found["weights"], plain["weights"], strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-2)
