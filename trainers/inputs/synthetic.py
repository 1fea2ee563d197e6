"""Random examples of any shape, to measure speed without files."""

import numpy as np

from trainers.config.data import DataConfig
from trainers.inputs.sources import ArraySource, Data


def load(config: DataConfig) -> Data:
    """Returns normally distributed features, labeled by the largest of the first few.

    The label depends on the features so that losses fall, and a run that learns differs
    from a run that does not.
    """
    # One held-out example for eight training examples.
    num_held_out = max(1, config.num_examples // 8)
    total = config.num_examples + num_held_out
    # A fixed seed: all runs and all tasks have the same data.
    generator = np.random.default_rng(0)
    features = generator.standard_normal((total, *config.input_shape), np.float32)
    flat = features.reshape(total, -1)
    labels = flat[:, : config.num_classes].argmax(axis=1).astype(np.int64)
    split = config.num_examples
    return Data(
        train=ArraySource(features[:split], labels[:split]),
        evaluation=ArraySource(features[split:], labels[split:]),
        input_shape=config.input_shape,
        num_classes=config.num_classes,
    )
