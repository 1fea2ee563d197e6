"""Estimate of training memory before it is allocated.

The estimate counts the parts that grow with the model and the batch: variables, their
gradients, and the activations that a step keeps until their gradient has been computed
(Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 3). The
program itself, the data set and the workspace of convolutions need further memory.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import psutil
import tensorflow as tf

from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.variables import copies_of
from strategies.devices.gpu import total_memory_mib
from strategies.inner_loop.reduction import bytes_of
from trainers.loop.parts import TrainingParts
from trainers.pipeline_parallel.build import Pipeline

# Number of bits to shift by, and the name of the unit.
_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


@dataclasses.dataclass(kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes needed in one memory: a GPU's, or the machine's for one process.

    Attributes:
      weights: Bytes of the model's variables, and of the replicas' own state
        (`Strategy.replica_state`), such as the copies that local SGD keeps while their
        mean is loaded.
      optimizer: Bytes of the optimizer's variables.
      gradients: Bytes of one gradient per trainable variable and replica.
      activations: Bytes of the outputs of all layers for a replica's shard.
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


def estimate_memory(parts: TrainingParts) -> Mapping[str, MemoryEstimate]:
    """Estimates the bytes needed in each memory.

    Returns:
      Estimates by memory: `GPU:0`, or `worker-0 CPU` for all CPU devices of a process.
    """
    found: dict[str, MemoryEstimate] = defaultdict(MemoryEstimate)
    weights = [variable.value for variable in parts.model.variables]
    for variable in (*weights, *parts.strategy.replica_state()):
        for copy in copies_of(variable):
            found[_memory_of(copy.device)].weights += bytes_of([copy])
    for variable in parts.optimizer_variables():
        for copy in copies_of(variable):
            found[_memory_of(copy.device)].optimizer += bytes_of([copy])
    if parts.pipeline is None:
        works = _replica_needs(parts)
    else:
        works = _stage_needs(parts.pipeline, _rows_at_once(parts))
    for device, gradients, activations in works:
        found[_memory_of(device)].gradients += gradients
        found[_memory_of(device)].activations += activations
    return dict(found)


def _replica_needs(parts: TrainingParts) -> Iterator[tuple[str, int, int]]:
    """Yields the device of each replica, and its bytes of gradients and activations."""
    gradients = parts.gradient_bytes()
    activations = _rows_at_once(parts) * bytes_of_activations(parts.model)
    for device in parts.strategy.devices:
        yield device, gradients, activations


def _stage_needs(pipeline: Pipeline, num_rows: int) -> Iterator[tuple[str, int, int]]:
    """Yields the device of each stage, and its bytes of gradients and activations."""
    count, stages = pipeline.num_microbatches, pipeline.stages
    rows = -(-num_rows // count)
    for stage in stages:
        # Under the 1F1B schedule stage s of S holds at most S - s micro-batches; the
        # last stage holds one.
        held = rows * min(len(stages) - stage.index, count)
        gradients = bytes_of([v.value for v in stage.trainable_variables])
        yield stage.device, gradients, held * bytes_of_activations(stage.model)


def bytes_of_activations(model: keras.Model) -> int:
    """Returns the bytes of the outputs of all layers for one example.

    Layers inside a custom layer of the user are unknown before they run; only the
    output of such a layer counts.
    """
    size = 0
    for layer in flat_layers(model):
        # The output of a model is the output of its last layer; an input is no
        # activation.
        if isinstance(layer, (keras.Model, keras.layers.InputLayer)):
            continue
        for output in _outputs_of(layer):
            # Unknown lengths, such as a sequence's, count as 1; the batch axis is left
            # out.
            shape = [1 if length is None else length for length in output.shape[1:]]
            size += math.prod(shape) * tf.as_dtype(output.dtype).size
    return size


def largest(estimates: Mapping[str, MemoryEstimate]) -> tuple[str, MemoryEstimate]:
    """Returns the name and the estimate of the memory that needs most bytes."""
    return max(estimates.items(), key=lambda item: item[1].total)


def warning_of(name: str, estimate: MemoryEstimate, capacity: int | None) -> str | None:
    """Returns a one-line warning if a memory is known to be too small, or None."""
    if capacity is None or estimate.total <= capacity:
        return None
    return (
        f"training will need about {bytes_in_words(estimate.total)} of the "
        f"{bytes_in_words(capacity)} of {name}: lower --global_batch_size, use smaller "
        "examples, or choose a smaller model"
    )


def capacity_of(name: str) -> int | None:
    """Returns the bytes of a memory, named as by `estimate_memory`; None if unknown."""
    kind, _, number = name.rpartition(" ")[2].partition(":")
    if kind != "GPU":
        return psutil.virtual_memory().total
    totals = total_memory_mib()
    return totals[int(number)] << 20 if int(number) < len(totals) else None


def bytes_in_words(size: int) -> str:
    """Formats a number of bytes, such as 1.5 GiB."""
    shift, unit = _unit_of(size)
    return f"{size / (1 << shift):.1f} {unit}"


def _unit_of(size: int) -> tuple[int, str]:
    """Returns the number of bits to shift by, and the name of the unit."""
    return next((u for u in _UNITS if size >= 1 << u[0]), _UNITS[-1])


def _rows_at_once(parts: TrainingParts) -> int:
    """Returns the number of rows of the largest micro-batch."""
    strategy = parts.config.strategy
    shards = strategy.num_shards(parts.strategy.num_replicas)
    micro_batches = shards * strategy.gradient_accumulation_steps
    return -(-parts.config.length.global_batch_size // micro_batches)


def _memory_of(device: str) -> str:
    """Returns the name of a device's memory."""
    spec = tf.DeviceSpec.from_string(device)
    kind = spec.device_type or "CPU"
    # All CPU devices of a process share the machine's memory.
    memory = kind if kind == "CPU" else f"{kind}:{spec.device_index}"
    if spec.job in (None, "localhost"):
        return memory
    return f"{spec.job}-{spec.task} {memory}"


def _outputs_of(layer: keras.layers.Layer) -> Sequence[Any]:
    """Returns the outputs of a layer; empty if it was never called by itself."""
    try:
        # Keras raises for a layer that was never called with symbolic inputs.
        return tf.nest.flatten(layer.output)
    except (AttributeError, ValueError):
        return ()
