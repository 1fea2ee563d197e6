"""Model and data of plain_fit.py, as two functions that flags name.

  python -m trainers.main --model=examples.moved_from_fit:model --epochs=20 \
    --dataset=examples.moved_from_fit:digits --learning_rate=0.003 --strategy=mirrored
"""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def digits():
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)
    return (x, y), (x_test, y_test)


def model():
    model = keras.Sequential(
        [
            keras.Input([64]),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
