"""Description of a run for TensorBoard."""

from collections import Counter
from typing import Any

import tensorflow as tf

from strategies.common.private_apis.variables import copies_of
from strategies.inner_loop.reduction import bytes_of
from trainers.loop.parts import TrainingParts
from trainers.model.optimizers.several import parts_of
from trainers.reporting.tensorboard import table

# Settings in the row of the HParams dashboard.
_ROW = (
    "strategy", "model", "dataset", "global_batch_size", "optimizer",
    "learning_rate", "seed",
)  # fmt: skip
_DECIDED_BY_PROGRAM = (
    "learning_rate_schedule", "weight_decay", "dropout", "label_smoothing", "dtype",
)  # fmt: skip


def describe_run(parts: TrainingParts) -> dict[str, str]:
    """Returns Markdown tables by tag: configuration, devices, variable placement."""
    settings = parts.config.to_dict()
    replicas = list(enumerate(parts.strategy.devices))
    kind = "stage" if parts.strategy.traits.is_model_parallel else "replica"
    physical = [(d.name, d.device_type) for d in tf.config.list_physical_devices()]
    return {
        "configuration": table(("setting", "value"), list(settings.items())),
        "devices": table((kind, "device"), replicas)
        + "\n\n"
        + table(("physical device", "kind"), physical),
        "variables": table(
            ("variable", "shape", "type", "devices"), variable_placements(parts)
        ),
    }


def variable_placements(parts: TrainingParts) -> list[tuple[Any, ...]]:
    """Returns path, shape, type and devices of each variable of model and optimizer."""
    rows: list[tuple[Any, ...]] = []
    for variable in [*parts.model.variables, *parts.saved_optimizer_variables()]:
        devices = ", ".join(
            short_name(copy.device) for copy in copies_of(variable.value)
        )
        rows.append(
            (variable.path, str(tuple(variable.shape)), variable.dtype, devices)
        )
    return rows


def variable_bytes(parts: TrainingParts) -> dict[str, int]:
    """Returns the bytes of weights, layer state and optimizer state by device."""
    held: Counter[str] = Counter()
    model = [v.value for v in parts.model.weights]
    others = [parts.step, parts.learning_rate_scale.variable]
    others += parts.strategy.replica_state()
    shard = parts.strategy.optimizer_shard()
    others += [] if shard is None else shard.weights
    for variable in (*model, *parts.optimizer_variables(), *others):
        for copy in copies_of(variable):
            # Each copy of a mirrored variable counts on its own device.
            held[short_name(copy.device)] += bytes_of([copy])
    return dict(sorted(held.items()))


def short_name(device: str) -> str:
    """Returns `ps-0 CPU:0` for /job:ps/replica:0/task:0/device:CPU:0."""
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    return name if spec.job in (None, "localhost") else f"{spec.job}-{spec.task} {name}"


def hyperparameters(parts: TrainingParts) -> dict[str, Any]:
    """Returns the values of the run's row in TensorBoard's HParams dashboard."""
    settings = parts.config.to_dict()
    config, is_compiled = parts.config, parts.has_compiled_optimizer
    # The settings of the optimizer, and of a model by name, are not used by a program.
    names = _ROW if is_compiled else (*_ROW, *_DECIDED_BY_PROGRAM)
    row = {name: settings[name] for name in names}
    row |= {"model": config.model.name, "dataset": config.data_name}
    row["num_replicas"] = parts.strategy.num_replicas
    if is_compiled:
        optimizers = [part for part, _ in parts_of(parts.optimizer, [])]
        row["optimizer"] = ",".join(type(o).__name__.lower() for o in optimizers)
        row["learning_rate"] = parts.learning_rate(0)
        return row
    size = config.length.global_batch_size
    row["peak_learning_rate"] = config.optimizer.peak_learning_rate(size)
    return row
