"""How much memory training will take, before it takes it.

What is counted is what grows with the model and the batch: variables, their
gradients, and what a step keeps of every layer until its gradient has been computed
(Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 3). The
program itself, the data set and what a convolution needs for a moment come on top.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import psutil
import tensorflow as tf

from strategies.common.private_apis import copies_of, flat_layers
from strategies.devices.gpu import load_driver, total_memory_mib
from trainers.loop.builder import Assembly
from trainers.pipeline_parallel.build import Pipeline

_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


@dataclasses.dataclass(kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes in one memory: that of a GPU, or of the machine for one process.

    Attributes:
      weights: what the model's variables take. Where replicas train copies by
        themselves, also what they keep of these and of the optimizer's variables
        while their mean is in place.
      optimizer: variables of the optimizer.
      gradients: one for every trainable variable and replica.
      activations: outputs of all layers for every example of a replica's share.
    """

    weights: int = 0
    optimizer: int = 0
    gradients: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))

    def __str__(self) -> str:
        shift, unit = _unit_of(self.total)
        words = ", ".join(
            f"{name} {getattr(self, name) / (1 << shift):.1f}"
            for name in ("weights", "gradients", "optimizer", "activations")
        )
        return f"~{self.total / (1 << shift):.1f} {unit}: {words}"


def estimate_memory(assembly: Assembly) -> Mapping[str, MemoryEstimate]:
    """By memory: `GPU:0`, or `worker-0 CPU` for all CPU devices of a process."""
    found: dict[str, MemoryEstimate] = defaultdict(MemoryEstimate)
    for variable in assembly.model.variables:
        for copy in copies_of(variable.value):
            found[_memory_of(copy.device)].weights += _bytes(copy.shape, copy.dtype)
    for variable in assembly.optimizer.variables:
        for copy in copies_of(variable.value):
            found[_memory_of(copy.device)].optimizer += _bytes(copy.shape, copy.dtype)
    for variable in assembly.strategy.replica_state():
        found[_memory_of(variable.device)].weights += _bytes(
            variable.shape, variable.dtype
        )
    if assembly.pipeline is None:
        works = _of_replicas(assembly)
    else:
        works = _of_stages(assembly.pipeline, _rows_at_once(assembly))
    for device, gradients, activations in works:
        found[_memory_of(device)].gradients += gradients
        found[_memory_of(device)].activations += activations
    return dict(found)


def _of_replicas(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    """The device of each, and bytes of its gradients and activations."""
    gradients = assembly.gradient_bytes()
    activations = _rows_at_once(assembly) * bytes_of_activations(assembly.model)
    for device in assembly.strategy.devices:
        yield device, gradients, activations


def _of_stages(pipeline: Pipeline, num_rows: int) -> Iterator[tuple[str, int, int]]:
    """The same. Stage s of S holds S - s micro-batches at most, the last one alone."""
    count, stages = pipeline.num_micro_batches, pipeline.stages
    rows = -(-num_rows // count)
    for stage in stages:
        variables = (v.value for v in stage.trainable_variables)
        held = rows * min(len(stages) - stage.index, count)
        activations = held * bytes_of_activations(stage.model)
        yield (
            stage.device,
            sum(_bytes(v.shape, v.dtype) for v in variables),
            activations,
        )


def bytes_of_activations(model: keras.Model) -> int:
    """What the outputs of all layers take for one example.

    Layers inside a layer of the user's own are not known before they run; of such a
    layer only the output counts.
    """
    size = 0
    for layer in flat_layers(model):
        if isinstance(layer, (keras.Model, keras.layers.InputLayer)):
            continue
        for output in _outputs_of(layer):
            shape = [1 if length is None else length for length in output.shape[1:]]
            size += _bytes(shape, tf.as_dtype(output.dtype))
    return size


def largest(estimates: Mapping[str, MemoryEstimate]) -> tuple[str, MemoryEstimate]:
    """The memory that takes most, by name."""
    return max(estimates.items(), key=lambda item: item[1].total)


def warning_of(name: str, estimate: MemoryEstimate, capacity: int | None) -> str | None:
    """One line if it is more than there is.

    Args:
      name: of the memory.
      estimate: what is needed of it.
      capacity: bytes it has; None if that is not known.
    """
    if capacity is None or estimate.total <= capacity:
        return None
    return (
        f"training will need about {in_words(estimate.total)} of the "
        f"{in_words(capacity)} of {name}: lower --global_batch_size, use smaller "
        "examples, or choose a smaller model"
    )


def capacity_of(name: str) -> int | None:
    """Bytes of a memory by its name: of that GPU, or of the machine."""
    kind, _, number = name.rpartition(" ")[2].partition(":")
    if kind != "GPU":
        return psutil.virtual_memory().total
    totals = total_memory_mib(load_driver())
    return totals[int(number)] << 20 if int(number) < len(totals) else None


def in_words(size: int) -> str:
    """Such as 1.5 GiB."""
    shift, unit = _unit_of(size)
    return f"{size / (1 << shift):.1f} {unit}"


def _unit_of(size: int) -> tuple[int, str]:
    """How many bits a unit is shifted by, and its name."""
    return next((u for u in _UNITS if size >= 1 << u[0]), _UNITS[-1])


def _rows_at_once(assembly: Assembly) -> int:
    """The largest micro-batch; asynchronous replicas compute whole global batches."""
    strategy = assembly.config.strategy
    shares = strategy.num_shares(assembly.strategy.num_replicas)
    parts = shares * strategy.gradient_accumulation_steps
    return -(-assembly.config.length.global_batch_size // parts)


def _memory_of(device: str) -> str:
    """All CPU devices of a process share the machine's."""
    spec = tf.DeviceSpec.from_string(device)
    kind = spec.device_type or "CPU"
    memory = kind if kind == "CPU" else f"{kind}:{spec.device_index}"
    if spec.job in (None, "localhost"):
        return memory
    return f"{spec.job}-{spec.task} {memory}"


def _outputs_of(layer: keras.layers.Layer) -> Sequence[Any]:
    """Of its call; nothing for a layer that was never called by itself."""
    try:
        return tf.nest.flatten(layer.output)
    except (AttributeError, ValueError):
        return ()


def _bytes(shape: Sequence[int], dtype: tf.DType) -> int:
    return math.prod(shape) * dtype.size
