"""Partition of a model into stages by the measured time of its layers."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis import Call
from trainers.pipeline_parallel.layer_graph import LayerGraph

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


def cut_at_layers(graph: LayerGraph, names: Sequence[str]) -> list[int]:
    """The first call of every stage but the first, which is one of the named layer.

    Raises:
      UsageError: a name is not that of a layer, or no stage can begin with it.
    """
    positions: dict[str, int] = {}
    for index, call in enumerate(graph.calls):
        positions.setdefault(call.layer.name, index)
    accepted = [graph.calls[index].layer.name for index in graph.cuts()]
    given = f"--stages={','.join(names)}"
    for name in names:
        if name not in accepted:
            has = "cannot begin a stage" if name in positions else "is not a layer"
            raise UsageError(
                f"{given}: {name!r} {has} of this model; those that can begin a stage "
                f"are {', '.join(accepted) or 'none'}."
            )
    cuts = [positions[name] for name in names]
    if any(first >= second for first, second in itertools.pairwise(cuts)):
        ordered = sorted(set(names), key=positions.__getitem__)
        raise UsageError(
            f"{given} is not in the order of the model: give "
            f"--stages={','.join(ordered)}."
        )
    return cuts


def cut_evenly(
    graph: LayerGraph, measure: Callable[[], Sequence[float]], num_stages: int
) -> list[int]:
    """The first call of every stage but the first, so that stages take equally long.

    Args:
      graph: of the model.
      measure: gives the seconds that each call takes.
      num_stages: how many stages there are to be.

    Returns:
      The cuts for which the slowest stage is fastest: a pipeline is as fast as that.

    Raises:
      UsageError: the model has too few places to cut.
    """
    accepted = graph.cuts()
    if num_stages - 1 > len(accepted):
        raise UsageError(
            f"--stages={num_stages} is more than the {len(accepted) + 1} parts that "
            "this model can be cut into between its layers: lower it."
        )
    if num_stages == 1:
        return []
    until = [0.0, *itertools.accumulate(measure())]

    @functools.cache
    def best(begin: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Seconds of the slowest stage from a call on, and where they are cut."""
        if stages == 1:
            return until[-1] - until[begin], ()
        possible = []
        for index, cut in enumerate(accepted):
            if cut > begin and len(accepted) - index >= stages - 1:
                slowest, cuts = best(cut, stages - 1)
                own = until[cut] - until[begin]
                possible.append((max(own, slowest), (cut, *cuts)))
        return min(possible)

    return list(best(0, num_stages)[1])
