"""A custom loss: an image and a shifted copy of it must give the same prediction.

python -m trainers.main --script=examples/consistent_digits.py --strategy=mirrored
"""

import keras
import sklearn.datasets

_WEIGHT = 0.5


class Consistent(keras.Model):
    """Classifier whose loss also compares the logits of an image and a shifted copy."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Returns cross entropy and the mean square of the difference."""
        shifted = self(keras.ops.roll(x, 1, axis=2), training=training)
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + _WEIGHT * keras.ops.mean(keras.ops.square(y_pred - shifted))


keras.utils.set_random_seed(0)
images, labels = sklearn.datasets.load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16

inputs = keras.Input([8, 8, 1])
hidden = keras.layers.Conv2D(16, 3, activation="relu")(inputs)
logits = keras.layers.Dense(10)(keras.layers.Flatten()(hidden))
model = Consistent(inputs, logits)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, batch_size=64, epochs=15, validation_split=0.2, verbose=2)
