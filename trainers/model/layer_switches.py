"""Changes of a model that show where a difference between two trainings comes from.

A difference that disappears without dropout is caused by dropout. A difference that
appears as soon as every weight changes in its last bit is caused by rounding. The
changes work for any model, including a model of the user.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from strategies.common.private_apis.models import flat_layers
from trainers.model.random_numbers.seeds import seed_states

Kind = Callable[[keras.layers.Layer], bool]


def disable_layers(model: keras.Model, kinds: Sequence[str]) -> None:
    """Makes layers of some kinds behave in training as in inference.

    The variables of the layers do not change. A layer that does not take `training` is
    the same in both, such as the sampling layer of an autoencoder. Kinds have the names
    that `model.disable_layers` takes.
    """
    for layer in flat_layers(model):
        takes_training = "training" in inspect.signature(layer.call).parameters
        if takes_training and any(_KINDS[kind](layer) for kind in kinds):
            # `call` and not `__call__`: the layer itself must see training=False,
            # regardless of the argument that its caller passes.
            layer.call = _as_in_inference(layer.call)


def perturb_weights(model: keras.Model) -> None:
    """Changes every trainable weight to the next number of its type, up or down.

    Weights of zero and weights of 16 bits stay. The directions are random and the
    same in every call.
    """
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = variable.numpy()
        if value.dtype not in (np.float32, np.float64):
            continue
        direction = np.where(random.integers(0, 2, value.shape), np.inf, -np.inf)
        moved = np.nextafter(value, direction.astype(value.dtype))
        variable.assign(np.where(value == 0, value, moved))


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_without_training(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return call_without_training


def _is_random(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer draws numbers: dropout, noise or random augmentation."""
    # A container's variables include the counters of its layers.
    has_layers = len(flat_layers(layer)) > 1
    return not has_layers and bool(seed_states(layer))


def _normalizes_batches(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


_KINDS: Mapping[str, Kind] = {
    "dropout": _is_random,
    "batch_normalization": _normalizes_batches,
}
