"""Devices of replicas, and their configuration in TensorFlow."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.text import counted
from strategies.devices.config import DeviceConfig
from strategies.devices.gpu import memory_limit_mib, total_memory_mib
from strategies.devices.parsing import DeviceChoice

if TYPE_CHECKING:
    from strategies.config import StrategyConfig

CPU = "/device:CPU:0"


def take_devices(
    choice: DeviceChoice,
    wanted: int | None,
    wanted_without_gpu: int,
    setting: str = "--num_replicas",
) -> list[str]:
    """Returns the chosen devices, or else the first devices of the machine.

    Every GPU is used if there are any and no number is wanted. Without a GPU the CPU is
    split into logical devices, which behave like separate devices but share its cores.

    Args:
      choice: Value of --devices.
      wanted: Number of devices; None for all of them.
      wanted_without_gpu: Number of logical CPU devices if there is no GPU and neither
        flag is given.
      setting: Flag with the number of wanted devices, for messages.

    Raises:
      UsageError: There are fewer devices than wanted; the two flags ask for different
        numbers; a chosen device is missing; or TensorFlow already runs with other
        devices.
    """
    if choice.num_devices and wanted not in (None, choice.num_devices):
        raise UsageError(
            f"{choice} names {counted(choice.num_devices, 'device')} and "
            f"{setting}={wanted} asks for others: leave one of them out."
        )
    gpus = chosen_gpus(choice)
    # TensorFlow would take the memory of every visible GPU, chosen or not. It numbers
    # the visible GPUs from zero, and so do the names that are returned.
    if choice.num_devices:
        _show_only(gpus)
        # There are fewer with --soft_placement.
        wanted = len(gpus)
    if not gpus:
        wanted = choice.num_devices or wanted or wanted_without_gpu
        asked_for = str(choice) if choice.num_devices else f"{setting}={wanted}"
        return logical_cpus(wanted, asked_for)
    wanted = wanted or len(gpus)
    if wanted > len(gpus):
        raise UsageError(
            f"{setting}={wanted} needs as many devices, and this machine has "
            f"{counted(len(gpus), 'GPU')} for it: use {len(gpus)} or fewer."
        )
    return [f"/device:GPU:{index}" for index in range(wanted)]


def chosen_gpus(choice: DeviceChoice) -> list[tf.config.PhysicalDevice]:
    """Returns the GPUs that replicas may use, in TensorFlow's order; none for the CPU.

    Raises:
      UsageError: A chosen GPU is missing, and the choice is not soft.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not choice.num_devices:
        return gpus
    missing = missing_devices(choice)
    if missing and not choice.is_soft:
        raise UsageError(
            f"{choice} names {', '.join(missing)}, and this machine has {_existing()}: "
            "name what there is, or add --soft_placement to go on with that."
        )
    return [gpus[number] for number in choice.gpus if number < len(gpus)]


def missing_devices(choice: DeviceChoice) -> list[str]:
    """Returns the chosen devices that this machine does not have, such as `gpu:1`."""
    # Only GPUs can be missing: every machine has a CPU.
    count = len(tf.config.list_physical_devices("GPU"))
    return [f"gpu:{number}" for number in choice.gpus if number >= count]


def substitution(choice: DeviceChoice) -> str | None:
    """Returns a sentence about the substitutes of missing devices; None without any."""
    missing = missing_devices(choice)
    if not missing:
        return None
    left = [f"gpu:{gpu_number(gpu)}" for gpu in chosen_gpus(choice)]
    used = f"only {', '.join(left)}" if left else "the CPU"
    return (
        f"{', '.join(missing)} of --devices is not on this machine: --soft_placement "
        f"uses {used}."
    )


def configure_devices(strategy: StrategyConfig, config: DeviceConfig) -> None:
    """Configures memory and placement, before TensorFlow starts.

    The settings of GPU memory have never run with a GPU, because none was available.

    Raises:
      UsageError: There is no GPU for the memory settings, a GPU has less memory, or a
        device is missing.
    """
    # Without the flag (None) operations may run elsewhere if their device cannot run
    # them.
    tf.config.set_soft_device_placement(strategy.soft_placement is not False)
    given = config.memory_settings()
    gpus = chosen_gpus(strategy.device_choice)
    if not given:
        return
    # Some of several processes may compute on the CPU, and all get the same flags.
    if not gpus and not strategy.traits.multi_process:
        raise UsageError(
            f"{given[0]} needs GPUs, and this machine has {_existing()}: leave it out."
        )
    for gpu in gpus:
        if config.memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            # A GPU as one logical device of limited memory.
            limit = tf.config.LogicalDeviceConfiguration(
                memory_limit=memory_limit_mib(
                    config, gpu_number(gpu), total_memory_mib()
                )
            )
            tf.config.set_logical_device_configuration(gpu, [limit])


def gpu_number(gpu: tf.config.PhysicalDevice) -> int:
    """Returns the number of a GPU, the 2 of `/physical_device:GPU:2`."""
    return int(gpu.name.rpartition(":")[2])


def check_one_replica() -> None:
    """Raises UsageError if this process has several GPUs, and so several replicas."""
    count = len(tf.config.list_physical_devices("GPU"))
    if count > 1:
        raise UsageError(
            f"--shard_optimizer_state divides an update between processes, and this "
            f"one has {count} GPUs: start a task for each GPU, with "
            "CUDA_VISIBLE_DEVICES, or leave it out."
        )


def logical_cpus(wanted: int, asked_for: str = "") -> list[str]:
    """Returns the names of the CPU's logical devices, and splits the CPU if needed.

    Raises:
      UsageError: The number is too large, or TensorFlow already runs with fewer.
    """
    most = _most_logical_cpus()
    if wanted > most:
        raise UsageError(
            f"{asked_for or wanted} is more than the {most} logical devices this "
            f"machine's CPU is split into at most: use {most} or fewer."
        )
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        # An unconfigured CPU is one device. A CPU with more devices stays as it is, so
        # that one process can make several strategies.
        configured = tf.config.get_logical_device_configuration(cpu)
        if wanted > len(configured or [None]):
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * wanted
            )
    # TensorFlow's devices cannot change after its first operation.
    except RuntimeError as error:
        raise UsageError(
            f"{wanted} logical CPU devices are needed, but TensorFlow already runs "
            "in this process with fewer: choose the strategy before using TensorFlow."
        ) from error
    return [f"/device:CPU:{index}" for index in range(wanted)]


def _most_logical_cpus() -> int:
    """Returns the largest number of logical devices that the CPU is split into."""
    # More devices would only take turns on the cores.
    return max(8, 2 * (os.cpu_count() or 1))


def _show_only(gpus: Sequence[tf.config.PhysicalDevice]) -> None:
    try:
        tf.config.set_visible_devices(gpus, "GPU")
    except RuntimeError as error:
        raise UsageError(
            "--devices comes too late, because TensorFlow already runs in this process "
            "with other GPUs: choose the strategy before using TensorFlow."
        ) from error


def _existing() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    numbers = ", ".join(f"gpu:{number}" for number in range(len(gpus)))
    cpus = f"the CPU (cpu:1 to cpu:{_most_logical_cpus()})"
    return f"{numbers} and {cpus}" if gpus else f"no GPU, only {cpus}"


def describe(devices: Sequence[str]) -> str:
    """Returns devices in words, such as `GPU:0, GPU:1` or `CPU (no GPU found)`."""
    # Devices of a cluster, in full: /job:worker/replica:0/task:1/device:CPU:0.
    if devices[0].startswith("/job:"):
        tasks = {device.rsplit("/device:", 1)[0] for device in devices}
        noun = "process" if len(tasks) == 1 else "processes"
        return f"the devices of {len(tasks)} {noun}"
    if "GPU" in devices[0]:
        return ", ".join(name_of(device) for device in devices)
    why = "" if tf.config.list_physical_devices("GPU") else " (no GPU found)"
    if len(devices) == 1:
        return f"CPU{why}"
    return f"the CPU split into {len(devices)} logical devices{why}"


def name_of(device: str) -> str:
    """Returns a device's name, such as `CPU:0` or `GPU:0 (gpu:2)`.

    The second number is the one of --devices, where it differs: TensorFlow numbers the
    visible GPUs from zero.
    """
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    if spec.device_type != "GPU":
        return name
    number = gpu_number(tf.config.get_visible_devices("GPU")[spec.device_index])
    return name if number == spec.device_index else f"{name} (gpu:{number})"


@functools.cache
def cpu_model() -> str:
    """Returns the name of the processor, or `unknown`."""
    try:
        # Linux only, and only on some processors: x86 has the line, most Arm do not.
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].split(":", 1)[1].strip() if names else "unknown"
