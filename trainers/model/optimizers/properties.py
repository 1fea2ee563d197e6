"""Properties of optimizers that decide which strategies can use them."""

import keras

from trainers.model.optimizers.adagrad import Adagrad
from trainers.model.optimizers.adam import Adam, AdamW
from trainers.model.optimizers.several import parts_of

# Optimizers of Keras that `updates_each_element` accepts.
ELEMENTWISE = (
    keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW,
    keras.optimizers.RMSprop, keras.optimizers.Adagrad, keras.optimizers.Adadelta,
    keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Ftrl,
    keras.optimizers.Lion,
)  # fmt: skip


def with_conditional_update(
    optimizer: keras.optimizers.Optimizer,
) -> keras.optimizers.Optimizer | None:
    """Returns the optimizer that changes weights in some updates only, or None.

    It may be inside of the given one.

    Keras accumulates gradients, and overwrites weights with their moving average, in a
    branch (keras/src/optimizers/base_optimizer.py, `_backend_apply_gradients`).
    """
    for part, _ in parts_of(optimizer, []):
        overwrites = part.use_ema and part.ema_overwrite_frequency
        if part.gradient_accumulation_steps or overwrites:
            return part
    return None


def updates_each_element(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer computes each element of a weight by itself.

    Others need norms, means or products of whole weights. A subclass may do anything.
    """
    own = {Adam: keras.optimizers.Adam, AdamW: keras.optimizers.AdamW}
    own[Adagrad] = keras.optimizers.Adagrad
    kind = type(optimizer)
    return own.get(kind, kind) in ELEMENTWISE
