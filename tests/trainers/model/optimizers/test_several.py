"""Tests of several optimizers in the place of one."""

import keras
import pytest
import tensorflow as tf

from trainers.model.optimizers.several import SeveralOptimizers


# Keras warns of it, as in `fit`.
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_an_optimizer_of_others_trains_beside_a_weight_without_a_gradient() -> None:
    first, second = keras.Variable([1.0]), keras.Variable([1.0])
    chosen = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5))
    optimizer = keras.optimizers.MultiOptimizer(chosen)
    optimizer.build([first, second])
    several = SeveralOptimizers([(optimizer, [first, second])], optimizer)
    several.apply_gradients([(tf.constant([1.0]), first), (None, second)])
    assert [float(v.numpy()[0]) for v in (first, second)] == [0.5, 1.0]
