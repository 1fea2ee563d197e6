"""Every private name of TensorFlow and Keras that this project relies on.

Each is here for want of a public one, and tests/test_tensorflow_facts.py fails
when one changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras


def stop_reducing_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer apply gradients as they are.

    In a replica context a Keras 3 optimizer sums gradients over replicas by
    itself. Ours are summed before, since clipping has to come after the sum;
    summing twice multiplies them by the number of replicas. Keras has no public
    switch (keras/src/backend/tensorflow/optimizer.py, `_all_reduce_sum_gradients`).
    """
    optimizer._all_reduce_sum_gradients = list


def flat_layers(model: keras.Model) -> Sequence[keras.layers.Layer]:
    """All layers of a model at any depth, itself included.

    `Model.layers` lists one level, and none of those that a layer of the user's
    own keeps in its attributes (keras/src/layers/layer.py, `_flatten_layers`).
    """
    return model._flatten_layers()
