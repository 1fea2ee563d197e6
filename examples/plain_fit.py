"""A plain Keras program: it knows nothing of this project.

python examples/plain_fit.py
python -m trainers.main --script=examples/plain_fit.py --strategy=mirrored
"""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)
model = keras.Sequential(
    [
        keras.Input([64]),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(x, y, batch_size=64, epochs=20, validation_data=(x_test, y_test), verbose=2)
