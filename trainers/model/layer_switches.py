"""Layers that do in training what they do in inference.

A difference between two strategies that goes away without dropout comes from
dropout. This takes it out of any model, also one of the user's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from strategies.common.private_apis import flat_layers
from trainers.model.rng import seed_states

Kind = Callable[[keras.layers.Layer], bool]


def switch_off(model: keras.Model, kinds: Sequence[str]) -> None:
    """Changes how layers of these kinds are called, not what variables they have.

    A layer's own `call` is told that this is no training, whatever its caller says.

    Args:
      model: with all its layers built.
      kinds: names of `--switch_off`.
    """
    for layer in flat_layers(model):
        if any(_KINDS[kind](layer) for kind in kinds):
            layer.call = _as_in_inference(layer.call)


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def told_otherwise(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return told_otherwise


def _is_random(layer: keras.layers.Layer) -> bool:
    """Whether it draws numbers itself: dropout, noise, random augmentation."""
    has_layers = len(flat_layers(layer)) > 1
    return not has_layers and bool(seed_states(layer))


def _normalizes_batches(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


_KINDS: Mapping[str, Kind] = {
    "dropout": _is_random,
    "batch_normalization": _normalizes_batches,
}
