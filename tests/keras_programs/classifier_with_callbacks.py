"""A classifier of digits with the callbacks that most programs have."""

import sys

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
x_train, y_train = images[:1500], labels[:1500]
x_test, y_test = images[1500:], labels[1500:]

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.RMSprop(0.005),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top")],
)
folder = sys.argv[1] if len(sys.argv) > 1 else "."
history = model.fit(
    x_train,
    y_train,
    batch_size=50,
    epochs=4,
    validation_split=0.1,
    callbacks=[
        keras.callbacks.EarlyStopping(
            monitor="val_accuracy", patience=2, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.ModelCheckpoint(
            f"{folder}/best.keras", monitor="val_top", save_best_only=True
        ),
        keras.callbacks.CSVLogger(f"{folder}/log.csv"),
    ],
)
print("epochs:", len(history.history["val_top"]))
print("test:", model.evaluate(x_test, y_test, verbose=0))
