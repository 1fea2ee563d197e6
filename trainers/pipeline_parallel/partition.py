"""Partition of a model by the measured time of layers."""

import functools
import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.pipeline_parallel.layer_graph import LayerGraph

# The minimum of the runs counts, because other processes disturb it least. The first
# run also includes one-time initialization.
_REPETITIONS = 5


def measure_seconds(graph: LayerGraph, features: Any, device: str) -> list[float]:
    """Measures the seconds of each call, forward and backward, one call at a time.

    `features` have as many examples as a micro-batch. All stages are assumed to have
    an equal device.
    """
    values = graph.features_by_name(features)
    given = set(map(id, values.values()))
    seconds = []
    with tf.device(device):
        for call in graph.calls:
            # Each tensor once, even if the call takes it several times.
            symbols = list({id(tensor): tensor for tensor in call.inputs}.values())
            layer = keras.Model(symbols, list(call.outputs))
            inputs = [values[id(symbol)] for symbol in symbols]
            runs = [_run(layer, inputs, given) for _ in range(_REPETITIONS)]
            seconds.append(min(taken for taken, _ in runs))
            values.update(zip(map(id, call.outputs), runs[-1][1], strict=True))
    return seconds


def _run(
    layer: keras.Model, inputs: Sequence[tf.Tensor], features: Collection[int]
) -> tuple[float, list[tf.Tensor]]:
    """Runs one layer forward and backward, and returns its seconds and outputs."""
    begin = time.perf_counter()
    # Discards the state that layers write, such as moving averages.
    with (
        keras.StatelessScope(),
        tf.GradientTape(watch_accessed_variables=False) as tape,
    ):
        sources = [v.value for v in layer.trainable_variables]
        sources += [
            tensor
            for tensor in inputs
            # As in training, features need no gradient.
            if tensor.dtype.is_floating and id(tensor) not in features
        ]
        tape.watch(sources)
        outputs = tf.nest.flatten(layer(list(inputs), training=True))
        targets = [tensor for tensor in outputs if tensor.dtype.is_floating]
    gradients = tape.gradient(targets, sources) if targets and sources else []
    # GPUs compute asynchronously: reading one number of each result waits for all of
    # them.
    for made in tf.nest.flatten([outputs, gradients], expand_composites=True):
        if made is not None:
            tf.reshape(made, [-1])[:1].numpy()
    return time.perf_counter() - begin, outputs


def cut_at_layers(graph: LayerGraph, names: Sequence[str]) -> list[int]:
    """Returns the positions at which stages begin with named layers.

    Returns:
      Position of the first call of every stage except the first.

    Raises:
      UsageError: A name is unknown, or no stage can begin with its layer.
    """
    positions: dict[str, int] = {}
    for index, call in enumerate(graph.calls):
        positions.setdefault(call.layer.name, index)
    accepted = [graph.calls[index].layer.name for index in graph.cuts()]
    given = f"--pipeline_stages={','.join(names)}"
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
            f"--pipeline_stages={','.join(ordered)}."
        )
    return cuts


def cut_evenly(
    graph: LayerGraph, measure: Callable[[], Sequence[float]], num_stages: int
) -> list[int]:
    """Returns the positions at which stages of about equal duration begin.

    Returns:
      Position of the first call of every stage except the first. The slowest stage is
        as fast as possible, because it determines the speed of the pipeline.

    Raises:
      UsageError: The model has too few places to cut.
    """
    accepted = graph.cuts()
    if num_stages - 1 > len(accepted):
        raise UsageError(
            f"--pipeline_stages={num_stages} is more than the {len(accepted) + 1} "
            "parts that this model can be cut into between its layers: lower it."
        )
    if num_stages == 1:
        return []
    # until[i] is the time of the calls before call i, so a stage takes until[end] -
    # until[begin].
    until = [0.0, *itertools.accumulate(measure())]

    @functools.cache
    def best(begin: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Returns the seconds of the slowest stage from a call on, and the cuts."""
        if stages == 1:
            return until[-1] - until[begin], ()
        possible = []
        for index, cut in enumerate(accepted):
            # Enough places must remain for the other cuts.
            if cut > begin and len(accepted) - index >= stages - 1:
                slowest, cuts = best(cut, stages - 1)
                own = until[cut] - until[begin]
                possible.append((max(own, slowest), (cut, *cuts)))
        return min(possible)

    return list(best(0, num_stages)[1])
