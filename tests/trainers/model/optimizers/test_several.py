"""Tests of several optimizers in the place of one."""

import keras
import pytest
import tensorflow as tf

from trainers.model.optimizers.several import SeveralOptimizers, inner_of


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


_of_module = keras.optimizers.SGD()


def test_optimizers_in_any_variable_of_another_are_found() -> None:
    by_name, closed_over = keras.optimizers.SGD(), keras.optimizers.SGD()

    class Outer(keras.optimizers.Optimizer):
        def __init__(self) -> None:
            super().__init__(learning_rate=1.0)
            self.parts = {"first": by_name}

        def apply(self, gradients: list[tf.Tensor], variables: object = None) -> None:
            for one in (self.parts["first"], closed_over, _of_module, outer):
                one.apply(gradients, variables)

    outer = Outer()
    found = [id(one) for one in inner_of(outer)]
    assert found == [id(by_name), id(closed_over), id(_of_module)]
    assert not inner_of(by_name)
