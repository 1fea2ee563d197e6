"""The models of `work` in Keras, and their data in tf.data."""

import keras
import tensorflow as tf

from benchmarks.peers.work import Work, examples
from examples import text_classifier


def build(name: str, work: Work) -> keras.Model:
    """Returns logits [n, num_classes] of features [n, *input_shape]."""
    if name == "transformer":
        return text_classifier.model()
    layers: list[keras.Layer] = [keras.Input(work.input_shape)]
    if name == "convnet":
        for filters in (32, 64):
            layers += [
                keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
            ]
        layers += [
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
        ]
    for units in work.hidden_units:
        layers.append(keras.layers.Dense(units, activation="relu"))
    return keras.Sequential([*layers, keras.layers.Dense(work.num_classes)])


def dataset(work: Work, batch_size: int) -> tf.data.Dataset:
    """Returns shuffled batches without end."""
    features, labels = examples(work)
    return (
        tf.data.Dataset.from_tensor_slices((features, labels))
        .shuffle(len(labels))
        .repeat()
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def use_threads(threads: int) -> None:
    """Sets the number of threads; 0 for TensorFlow's choice."""
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def split_cpu(num_devices: int) -> list[str]:
    """Makes logical CPU devices, and returns their names."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * num_devices
    tf.config.set_logical_device_configuration(cpu, parts)
    return [f"CPU:{index}" for index in range(num_devices)]
