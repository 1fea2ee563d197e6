"""How long each layer of a model takes, measured on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.library_internals import Call
from trainers.pipeline.graph import LayerGraph

# The fastest is the one that least else has disturbed; the first also makes things.
_REPETITIONS = 5


def measure_seconds(graph: LayerGraph, features: Any, device: str) -> list[float]:
    """Seconds of each call, forward and backward, one operation after another.

    Args:
      graph: of the model.
      features: of as many examples as a micro-batch has.
      device: where to measure; all stages are taken to have one like it.
    """
    values = {
        id(symbol): value
        for symbol, value in zip(graph.inputs, tf.nest.flatten(features), strict=True)
    }
    seconds = []
    with tf.device(device):
        for call in graph.calls:
            symbols = list({id(tensor): tensor for tensor in call.inputs}.values())
            layer = keras.Model(symbols, list(call.outputs))
            inputs = [values[id(symbol)] for symbol in symbols]
            runs = [_run(layer, inputs, features) for _ in range(_REPETITIONS)]
            seconds.append(min(taken for taken, _ in runs))
            values.update(_named(call, runs[-1][1]))
    return seconds


def _run(
    layer: keras.Model, inputs: Sequence[tf.Tensor], features: Any
) -> tuple[float, list[tf.Tensor]]:
    """Seconds and outputs. As in training, features need no gradient."""
    needless = set(map(id, tf.nest.flatten(features)))
    begin = time.perf_counter()
    # Nothing that layers write, such as moving averages, is kept.
    with (
        keras.StatelessScope(),
        tf.GradientTape(watch_accessed_variables=False) as tape,
    ):
        sources = [v.value for v in layer.trainable_variables]
        sources += [
            tensor
            for tensor in inputs
            if tensor.dtype.is_floating and id(tensor) not in needless
        ]
        tape.watch(sources)
        outputs = tf.nest.flatten(layer(list(inputs), training=True))
        targets = [tensor for tensor in outputs if tensor.dtype.is_floating]
    gradients = tape.gradient(targets, sources) if targets and sources else []
    # On a GPU the time is over when a number of each is here.
    for made in tf.nest.flatten([outputs, gradients], expand_composites=True):
        if made is not None:
            tf.reshape(made, [-1])[:1].numpy()
    return time.perf_counter() - begin, outputs


def _named(call: Call, outputs: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    return {
        id(symbol): value for symbol, value in zip(call.outputs, outputs, strict=True)
    }
