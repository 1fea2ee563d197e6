"""Disables dropout or batch normalization during training.

A difference between two strategies that disappears without dropout is caused by
dropout. The switch works for any model, including a model of the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from strategies.common.private_apis import flat_layers
from trainers.model.rng import seed_states

Kind = Callable[[keras.layers.Layer], bool]


def disable_layers(model: keras.Model, kinds: Sequence[str]) -> None:
    """Makes layers of some kinds behave in training as in inference.

    The variables of the layers do not change.

    Args:
      model: Model with all its layers built.
      kinds: Kinds of layers, as in `model.disable_layers`.
    """
    for layer in flat_layers(model):
        if any(_KINDS[kind](layer) for kind in kinds):
            # `call` and not `__call__`: the layer itself must see training=False,
            # regardless of the argument that its caller passes.
            layer.call = _as_in_inference(layer.call)


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def told_otherwise(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return told_otherwise


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
