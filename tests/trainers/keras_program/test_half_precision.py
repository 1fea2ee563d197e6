"""Programs in half precision."""

import pathlib

import numpy as np
import pytest

from tests.markers import further
from tests.trainers.keras_program.beside_fit import by_fit, under

# The sum of its gradients is large.
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
        ("--strategy=one_device",),
        further(
            (
                *("--strategy=multi_worker_mirrored", "--num_workers=2"),
                "--shard_optimizer_state",
            )
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
        # Equal here; float16 rounds gradients by up to 5e-4 on each replica.
        np.testing.assert_allclose(weights, expected, rtol=1e-3)


_SAVED = """
import sys
import keras
import numpy as np

keras.utils.set_random_seed(3)
keras.config.set_dtype_policy("mixed_float16")
x = np.linspace(-1, 1, 192).reshape(32, 6)
y = x[:, :1]
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, dtype="float32")])
optimizer = keras.optimizers.LossScaleOptimizer(
    keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3
)
model.compile(optimizer, "mse")

class Scale(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        optimizer = self.model.optimizer
        logs["scale"] = float(optimizer.dynamic_scale)
        logs["count"] = float(optimizer.step_counter)
        logs["updates"] = float(optimizer.iterations)

path = sys.argv[0].replace("program.py", "saved.keras")
saves = keras.callbacks.ModelCheckpoint(path)
model.fit(x, y, batch_size=8, epochs=2, callbacks=[Scale(), saves])
model.fit(x, y, batch_size=8, epochs=1, callbacks=[Scale()])
# Of the first call.
keras.models.load_model(path).fit(x, y, batch_size=8, callbacks=[Scale()])
"""


def test_a_saved_model_is_read_again_with_its_scale(tmp_path: pathlib.Path) -> None:
    found = under(tmp_path, _SAVED, "--strategy=mirrored")
    plain = by_fit(tmp_path, _SAVED)
    for name in ("scale", "count", "updates"):
        expected = [one["history"][name] for one in plain]
        assert [one["history"][name] for one in found] == expected, name
    # Without Adam's moments the last call would go another way.
    for one, other in zip(found, plain, strict=True):
        for weights, expected in zip(one["weights"], other["weights"], strict=True):
            # Seen: 1.3e-7, of the mean over other shards in float32.
            np.testing.assert_allclose(weights, expected, rtol=1e-5)
