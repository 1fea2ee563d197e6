"""A small U-shaped network that marks pixels, with intersection over union."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(20)
random = np.random.default_rng(3)
images = random.random((200, 16, 16, 3)).astype("float32")
masks = (images.mean(axis=-1) > 0.5).astype("uint8")
data = tf.data.Dataset.from_tensor_slices((images, masks)).shuffle(200).batch(16)

inputs = keras.Input((16, 16, 3))
down = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
small = keras.layers.MaxPooling2D()(down)
small = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(small)
up = keras.layers.UpSampling2D()(small)
x = keras.layers.Concatenate()([up, down])
outputs = keras.layers.Conv2D(2, 1, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer="rmsprop",
    loss="sparse_categorical_crossentropy",
    metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False), "accuracy"],
)
history = model.fit(data, epochs=2, validation_data=data.take(3))
print(history.history)
