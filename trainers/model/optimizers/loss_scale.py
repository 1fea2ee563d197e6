"""Factor of the loss that keeps float16 gradients from vanishing."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.optimizers import loss_scale_variables
from strategies.common.types import Batch
from strategies.inner_loop.reduction import scaled
from strategies.inner_loop.results import INTERNAL

# Name of the scale among the sums of a step.
LOSS_SCALE = f"{INTERNAL}loss_scale"
# Name by which it is reported, as a mean over examples, unless a metric has this name.
REPORTED_SCALE = "loss_scale"


class LossScale:
    """Factor of the loss that keeps float16 gradients from vanishing.

    Numbers below 6e-8 are zero in float16, and many gradients are (Micikevicius et al.,
    Mixed Precision Training, 2018). The loss is multiplied by a power of two before it
    is differentiated, and each replica's gradients are divided by it, which rounds
    nothing: their sum is that of scaled gradients, divided afterwards. If the sum is
    not finite, the step is not applied but computed again on the same batch, at half
    the scale, so that no example is lost. After a number of finite steps the scale is
    doubled. The model's `keras.optimizers.LossScaleOptimizer`, or its
    default, decides the first scale and this number. After a sum that is not finite,
    Keras would continue with the next batch.

    Attributes:
      variables: The scale and the number of finite steps since its last change. They
        are no variables of the optimizer that updates weights: Keras cannot load an
        optimizer that was saved with additional variables.
    """

    # Below the least, float16 has no room for gradients of one; that is divergence.
    LEAST, MOST = 2.0**-14, 2.0**40

    def __init__(self, model: keras.Model):
        """Makes two variables, or takes the compiled optimizer's."""
        optimizer = wrapper_of(model) or keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD()
        )
        self._growth_steps = optimizer.dynamic_growth_steps
        self.variables = loss_scale_variables(optimizer, model.trainable_variables)
        self._scale, self._finite_steps = self.variables

    def read(self) -> tf.Tensor:
        """Returns the present scale, a float32 scalar."""
        return tf.convert_to_tensor(self._scale.value)

    def adapt(
        self, used: tf.Tensor, is_finite: tf.Tensor, overflowed: tf.Tensor
    ) -> tf.Tensor:
        """Changes the scale after a step, once for all replicas.

        Args:
          used: The scale of the step, a float64 scalar. Others may have changed it
            since, if updates do not wait for each other.
          is_finite: Bool scalar, True if the step was applied.
          overflowed: Bool scalar, True if it was not, though its loss was finite.

        Returns:
          Whether to compute the step once more, a bool scalar; it is known when the
          scale has been changed.
        """
        used = tf.cast(used, tf.float32)
        present = self.read()
        count = tf.convert_to_tensor(self._finite_steps.value)
        again = overflowed & (used > self.LEAST)
        lowers = again & tf.equal(present, used)
        grows = is_finite & (count + 1 >= self._growth_steps)
        higher = tf.where(present < self.MOST, 2 * present, present)
        scale = tf.where(lowers, used / 2, tf.where(grows, higher, present))
        count = tf.where(is_finite & ~grows, count + 1, 0)
        changes = [
            self._scale.value.assign(scale, read_value=False),
            self._finite_steps.value.assign(count, read_value=False),
        ]
        with tf.control_dependencies([c for c in changes if c is not None]):
            return tf.identity(again)


def wrapper_of(
    model: keras.Model,
) -> keras.optimizers.LossScaleOptimizer | None:
    """Returns the optimizer that scales the loss of a compiled model; None for none."""
    optimizer = getattr(model, "optimizer", None)
    kind = keras.optimizers.LossScaleOptimizer
    return optimizer if isinstance(optimizer, kind) else None


def inside_of_scale(optimizer: Any) -> Any:
    """Returns the optimizer inside of a LossScaleOptimizer, or the given one."""
    # Wrappers of users may have an attribute of the same name.
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return optimizer.inner_optimizer if is_scaling else optimizer


def needs_loss_scale(model: keras.Model) -> bool:
    """Returns whether a model is compiled with a loss scale or computes in float16.

    Gradients of float16 weights cannot be divided by a scale without losing the
    precision that it has saved; Keras does not scale their loss by itself either.
    """
    if wrapper_of(model) is not None:
        return True
    weights = {variable.dtype for variable in model.trainable_variables}
    layers = flat_layers(model)
    return "float16" not in weights and any(
        layer.compute_dtype == "float16" for layer in layers
    )


def scaled_loss(
    loss: tf.Tensor,
    sums: dict[str, tf.Tensor],
    scale: tf.Tensor | None,
    batch: Batch,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns a loss times a scale, and sums from which the scale is reported."""
    if scale is None:
        return loss, sums
    # Exact for a power of two, so that the mean over all examples is the scale.
    of_rows = tf.cast(scale, tf.float64) * tf.cast(batch.num_rows, tf.float64)
    return loss * tf.cast(scale, loss.dtype), {
        REPORTED_SCALE: of_rows,
        **sums,
        LOSS_SCALE: of_rows,
    }


def unscaled(gradients: Sequence[Any], scale: tf.Tensor | None) -> list[Any]:
    """Divides the gradients of a loss times a scale by the scale."""
    if scale is None:
        return list(gradients)
    return [scaled(gradient, 1 / scale) for gradient in gradients]


def check_scale(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Refuses a class that scales the loss, or unscales gradients, by itself.

    The training loop does both, and repeats a step whose gradients overflow.

    Raises:
      UsageError: The class, or that of the optimizer inside of it, is such a class.
    """
    inner = inside_of_scale(optimizer)
    is_scaling = inner is not optimizer
    names = ("scale_loss", *(("apply", "apply_gradients") if is_scaling else ()))
    for kind in type(optimizer).__mro__:
        found = set(names) & vars(kind).keys()
        if found and not kind.__module__.startswith("keras."):
            raise UsageError(
                f"the optimizer {kind.__name__} overrides {min(found)}, and "
                "--strategy scales the loss in its place: change gradients in apply "
                "alone, inside of a LossScaleOptimizer if losses are to be scaled."
            )
    if is_scaling:
        check_scale(inner)
