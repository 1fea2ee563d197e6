"""A variational autoencoder whose random numbers are the state of no layer."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(22)
images = load_digits().data.astype("float32") / 16


class Sampling(layers.Layer):
    def call(self, inputs):
        mean, log_variance = inputs
        noise = tf.random.normal(tf.shape(mean), dtype=mean.dtype)
        return mean + tf.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16, activation="relu")
        self.mean = layers.Dense(2)
        self.log_variance = layers.Dense(2)
        self.sampling = Sampling()
        self.decoder = layers.Dense(64, activation="sigmoid")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, images):
        hidden = self.hidden(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(self.sampling([mean, log_variance])), mean, log_variance

    def train_step(self, images):
        with tf.GradientTape() as tape:
            noise = keras.random.normal(tf.shape(images), stddev=0.1)
            made, mean, log_variance = self(tf.nn.dropout(images, 0.1) + noise)
            divergence = tf.exp(log_variance) + mean**2 - 1 - log_variance
            loss = tf.reduce_mean((made - images) ** 2)
            loss += 0.01 * tf.reduce_mean(divergence)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


model = Autoencoder()
model.compile(keras.optimizers.Adam(1e-3))
model.fit(images, epochs=1, batch_size=50)
