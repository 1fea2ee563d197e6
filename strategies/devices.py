"""Which devices replicas run on."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from strategies.settings import UsageError

CPU = "/device:CPU:0"


def replica_devices(
    num_replicas: int | None,
    replicas_without_gpu: int,
    setting: str = "--num_replicas",
) -> list[str]:
    """One device for each replica, or for each stage of a model.

    Every GPU is used if there are any. Without a GPU the CPU is split into
    logical devices, which behave like separate devices but share its cores.

    Args:
      num_replicas: how many, or None for all GPUs.
      replicas_without_gpu: how many if neither the user nor the hardware says.
      setting: the flag that says how many.

    Raises:
      UsageError: there are fewer devices than replicas.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        wanted = num_replicas or len(gpus)
        if wanted > len(gpus):
            raise UsageError(
                f"{setting}={wanted} needs as many devices, this machine has "
                f"{len(gpus)} GPU(s): use {setting}={len(gpus)} or fewer."
            )
        return [f"/device:GPU:{index}" for index in range(wanted)]
    return _logical_cpus(num_replicas or replicas_without_gpu, setting)


def require_gpus(setting: str, instead: str) -> None:
    """Raises UsageError if this machine has no GPU, which `setting` needs."""
    if not tf.config.list_physical_devices("GPU"):
        raise UsageError(f"{setting} needs GPUs and none was found: use {instead}.")


def _logical_cpus(wanted: int, setting: str) -> list[str]:
    most = max(8, 2 * (os.cpu_count() or 1))
    if wanted > most:
        raise UsageError(
            f"{setting}={wanted} is more than the {most} logical devices this "
            f"machine's CPU is split into at most: use {setting}={most} or fewer."
        )
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        configured = tf.config.get_logical_device_configuration(cpu)
        if wanted > len(configured or [None]):
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * wanted
            )
    except RuntimeError as error:
        raise UsageError(
            f"{wanted} logical CPU devices are needed, but TensorFlow already runs "
            "in this process with fewer: choose the strategy before using TensorFlow."
        ) from error
    return [f"/device:CPU:{index}" for index in range(wanted)]


def describe(devices: Sequence[str]) -> str:
    """The devices in words, such as `2 logical CPU devices (no GPU found)`."""
    if devices[0].startswith("/job:"):
        tasks = {device.rsplit("/device:", 1)[0] for device in devices}
        return f"the devices of {len(tasks)} processes"
    kind = "GPU" if "GPU" in devices[0] else "CPU"
    if kind == "GPU":
        return ", ".join(device.removeprefix("/device:") for device in devices)
    if len(devices) == 1:
        return "CPU (no GPU found)"
    return f"the CPU split into {len(devices)} logical devices (no GPU found)"


@functools.cache
def cpu_model() -> str:
    """Name of the processor, or `unknown`."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].split(":", 1)[1].strip() if names else "unknown"
