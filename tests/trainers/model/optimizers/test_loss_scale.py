"""Optimizers that scale losses, which the training loop does here."""

import keras
import pytest

from strategies.common.errors import UsageError
from trainers.model.optimizers.loss_scale import check_scale


class Scaling(keras.optimizers.SGD):
    def scale_loss(self, loss):
        return 16.0 * loss


class Unscaling(keras.optimizers.LossScaleOptimizer):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)


class Changing(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (Scaling(), "Scaling overrides scale_loss"),
        (
            keras.optimizers.LossScaleOptimizer(Scaling()),
            "Scaling overrides scale_loss",
        ),
        (Unscaling(keras.optimizers.SGD()), "Unscaling overrides apply"),
    ],
)
def test_a_class_that_scales_losses_by_itself_is_refused(
    optimizer: keras.optimizers.Optimizer, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_scale(optimizer)


def test_a_class_that_changes_gradients_is_accepted() -> None:
    check_scale(Changing())
    check_scale(keras.optimizers.LossScaleOptimizer(Changing()))
