"""Callbacks of one's own at every batch and epoch; one changes the learning rate."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(17)
images, labels = load_digits(return_X_y=True)


class Warmup(keras.callbacks.Callback):
    def __init__(self, steps, rate):
        super().__init__()
        self.steps, self.rate, self.seen = steps, rate, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.seen += 1
        share = min(self.seen / self.steps, 1.0)
        self.model.optimizer.learning_rate = self.rate * share

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: rate {float(self.model.optimizer.learning_rate):.4f}")


def schedule(epoch, learning_rate):
    return learning_rate


warmup = Warmup(20, 0.05)
moments = []
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    images,
    labels,
    batch_size=100,
    epochs=2,
    callbacks=[
        warmup,
        keras.callbacks.LearningRateScheduler(schedule),
        keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: moments.append("train"),
            on_epoch_begin=lambda epoch, logs: moments.append(f"epoch {epoch}"),
            on_train_end=lambda logs: moments.append("end"),
        ),
    ],
)
print(warmup.seen, moments)
