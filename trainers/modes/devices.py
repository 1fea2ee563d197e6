"""Devices of this machine and the placement of replicas (`--mode=devices`)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import tensorflow as tf

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.devices.assignment import (
    configure_devices,
    cpu_model,
    describe,
    gpu_number,
    name_of,
    substitution,
)
from strategies.devices.gpu import total_memory_mib, visible_gpus
from trainers.config.config import Config
from trainers.loop.builder import create_strategy
from trainers.modes.doctor_findings import gpus_left_out


def devices(config: Config, console: Console) -> ExitCode:
    """Prints the devices of this machine and the replicas on them.

    Raises:
      UsageError: --devices or another setting asks for devices that the machine lacks.
    """
    configure_devices(config.strategy, config.device)
    for label, lines in _sections(config):
        for line in lines:
            console.item(label, line)
            # Only the first line of a section has its label.
            label = ""
    words = substitution(config.strategy.device_choice)
    if words:
        console.warn(words)
    return ExitCode.DONE


def _sections(config: Config) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the sections of the output: a label and its lines."""
    # Cores that this process may use; os.cpu_count() counts all cores of the machine.
    cores = len(os.sched_getaffinity(0))
    yield "machine", [f"{cores} of {os.cpu_count()} cores, {cpu_model()}"]
    yield "physical", _physical()
    yield "strategy", [config.strategy.strategy]
    if config.strategy.traits.multi_process:
        yield "replicas", ["in several processes, which --mode=doctor shows"]
    else:
        # Created only to learn where its replicas are.
        strategy = create_strategy(config, Cluster())
        where = describe(strategy.devices)
        yield "replicas", [f"{strategy.num_replicas}, on {where}"]
        yield "logical", _logical(strategy.devices)
        strategy.close()
    yield "memory", [_memory(config)]
    yield "placement", [_placement(config.strategy.soft_placement)]
    yield "threads", _threads(config, cores)


def _physical() -> list[str]:
    memory = psutil.virtual_memory().total >> 20
    lines = [f"cpu    {memory:,} MiB of memory"]
    gpus, totals = tf.config.list_physical_devices("GPU"), total_memory_mib()
    for gpu in gpus:
        number = gpu_number(gpu)
        total = totals[number] if number < len(totals) else None
        details = tf.config.experimental.get_device_details(gpu)
        lines.append(f"gpu:{number}  {gpu_in_words(details, total)}")
    if not gpus:
        # NVIDIA's driver may know GPUs for which TensorFlow lacks libraries.
        of_driver = len(visible_gpus(os.environ))
        lines.append(gpus_left_out(of_driver) if of_driver else "no GPU")
    return lines


def gpu_in_words(details: Mapping[str, Any], total: int | None) -> str:
    """Returns memory in MiB, compute capability and name of a GPU as text.

    `details` are from `tf.config.experimental.get_device_details`.
    """
    capability = details.get("compute_capability")
    words = [
        "memory unknown" if total is None else f"{total:,} MiB of memory",
        "compute capability "
        + ("unknown" if capability is None else ".".join(map(str, capability))),
        details.get("device_name", "name unknown"),
    ]
    return ", ".join(words)


def _logical(replicas: Sequence[str]) -> list[str]:
    """Returns a line for every logical device, with its name and its replica."""
    lines = []
    for device in tf.config.list_logical_devices():
        name = f"/device:{device.name.rpartition('/device:')[2]}"
        use = f"replica {replicas.index(name)}" if name in replicas else "no replica"
        lines.append(f"/device:{name_of(name)}  {use}")
    return lines


def _memory(config: Config) -> str:
    settings = config.device
    if settings.memory_growth:
        return "of GPUs: as it is needed"
    if settings.memory_settings():
        return f"of GPUs: at most as {settings.memory_settings()[0]} says"
    return "of GPUs: nearly all at once; --memory_growth takes it as needed"


def _placement(soft: bool | None) -> str:
    if soft is None:
        return "operations may move to another device; --devices must exist"
    if soft:
        return "operations may move to another device, and so may replicas"
    return "nothing may move to another device"


def _threads(config: Config, cores: int) -> list[str]:
    intra, inter = config.threads.intra_op_threads, config.threads.inter_op_threads
    own = "TensorFlow's choice"
    return [
        f"for one operation: {intra or f'{cores}, the cores of this process'}",
        f"for operations side by side: {inter or own}",
    ]
