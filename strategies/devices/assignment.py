"""Which devices replicas run on, and what a process takes of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.devices.config import DeviceConfig
from strategies.devices.gpu import load_driver, memory_limit_mib, total_memory_mib
from strategies.devices.parsing import DeviceChoice

CPU = "/device:CPU:0"


def replica_devices(
    choice: DeviceChoice, num_replicas: int | None, replicas_without_gpu: int
) -> list[str]:
    """Returns one device for each replica.

    Every GPU is used if there are any. Without a GPU the CPU is split into logical
    devices, which behave like separate devices but share its cores.

    Args:
      choice: The value of --devices.
      num_replicas: The value of --num_replicas; None for one replica a device.
      replicas_without_gpu: Number of replicas on a machine without a GPU if neither
        flag is given.

    Raises:
      UsageError: as for `take_devices`.
    """
    return take_devices(choice, num_replicas, replicas_without_gpu)


def take_devices(
    choice: DeviceChoice,
    wanted: int | None,
    wanted_without_gpu: int,
    setting: str = "--num_replicas",
) -> list[str]:
    """The devices that --devices chooses, or else the first of those there are.

    GPUs that are not chosen are hidden from TensorFlow, which would take their memory
    all the same; it numbers the others anew.

    Args:
      choice: which of them.
      wanted: how many; None for all.
      wanted_without_gpu: how many logical devices the CPU is split into if nothing
        else says so.
      setting: the flag that says how many are wanted.

    Raises:
      UsageError: there are fewer devices than wanted, or other ones than were chosen;
        one that was chosen is missing; or TensorFlow runs already with other devices.
    """
    if choice.num_devices and wanted not in (None, choice.num_devices):
        raise UsageError(
            f"{choice} names {choice.num_devices} device(s) and {setting}={wanted} "
            "asks for others: leave one of them out."
        )
    gpus = chosen_gpus(choice)
    if choice.num_devices:
        _show_only(gpus)
    if not gpus:
        wanted = wanted or choice.num_devices or wanted_without_gpu
        is_chosen = choice.num_devices == wanted
        return logical_cpus(
            wanted, asked_for=str(choice) if is_chosen else f"{setting}={wanted}"
        )
    wanted = wanted or len(gpus)
    if wanted > len(gpus):
        raise UsageError(
            f"{setting}={wanted} needs as many devices, and there are {len(gpus)} "
            f"GPU(s) for it: use {len(gpus)} or fewer."
        )
    return [f"/device:GPU:{index}" for index in range(wanted)]


def chosen_gpus(choice: DeviceChoice) -> list[tf.config.PhysicalDevice]:
    """The GPUs that replicas may use, in TensorFlow's order; none for the CPU.

    Raises:
      UsageError: one that was chosen is missing, and the choice is not soft.
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
    """What was chosen and this machine does not have, such as `gpu:1`."""
    count = len(tf.config.list_physical_devices("GPU"))
    return [f"gpu:{number}" for number in choice.gpus if number >= count]


def substitution(choice: DeviceChoice) -> str | None:
    """What becomes of devices that are missing, in a sentence; None if none is."""
    missing = missing_devices(choice)
    if not missing:
        return None
    left = [f"gpu:{gpu_number(gpu)}" for gpu in chosen_gpus(choice)]
    used = f"only {', '.join(left)}" if left else "the CPU"
    return (
        f"{', '.join(missing)} of --devices is not on this machine: --soft_placement "
        f"uses {used}."
    )


def configure_devices(
    choice: DeviceChoice,
    config: DeviceConfig,
    *,
    soft_placement: bool | None,
    multi_process: bool,
) -> None:
    """Configures memory and placement, before TensorFlow starts.

    Nothing here has run with a GPU: there was none to run it on.

    Args:
      choice: The value of --devices.
      config: Memory settings of GPUs.
      soft_placement: The value of --soft_placement; None where it is not given.
      multi_process: Whether the strategy has several processes, some of which may
        compute on the CPU although all get the same flags.

    Raises:
      UsageError: there is no GPU to take memory of, or not so much memory; or a device
        is missing.
    """
    tf.config.set_soft_device_placement(soft_placement is not False)
    given = config.memory_settings()
    gpus = chosen_gpus(choice)
    if not given:
        return
    if not gpus and not multi_process:
        raise UsageError(
            f"{given[0]} needs GPUs, and this machine has {_existing()}: leave it out."
        )
    for gpu in gpus:
        if config.memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            limit = tf.config.LogicalDeviceConfiguration(
                memory_limit=memory_limit_mib(config, gpu_number(gpu), total_mib())
            )
            tf.config.set_logical_device_configuration(gpu, [limit])


def total_mib() -> tuple[int, ...]:
    """MiB of each GPU by its number; empty if the driver does not say."""
    return total_memory_mib(load_driver())


def gpu_number(gpu: tf.config.PhysicalDevice) -> int:
    """The 2 of `/physical_device:GPU:2`."""
    return int(gpu.name.rpartition(":")[2])


def require_gpus(setting: str, instead: str) -> None:
    """Raises UsageError if this machine has no GPU, which `setting` needs."""
    if not tf.config.list_physical_devices("GPU"):
        raise UsageError(f"{setting} needs GPUs and none was found: use {instead}.")


def logical_cpus(wanted: int, asked_for: str = "") -> list[str]:
    """The CPU as so many devices.

    Args:
      wanted: how many.
      asked_for: the flag that says so.

    Raises:
      UsageError: they are too many, or TensorFlow runs already with fewer.
    """
    most = _most_logical_cpus()
    if wanted > most:
        raise UsageError(
            f"{asked_for or wanted} is more than the {most} logical devices this "
            f"machine's CPU is split into at most: use {most} or fewer."
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


def _most_logical_cpus() -> int:
    """More would only take turns on the cores."""
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
    """The devices in words, such as `2 logical CPU devices (no GPU found)`."""
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
    """`CPU:0`; `GPU:0 (gpu:2)` where TensorFlow numbers the GPUs it sees anew."""
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    if spec.device_type != "GPU":
        return name
    number = gpu_number(tf.config.get_visible_devices("GPU")[spec.device_index])
    return name + f" (gpu:{number})" * (number != spec.device_index)


@functools.cache
def cpu_model() -> str:
    """Name of the processor, or `unknown`."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].split(":", 1)[1].strip() if names else "unknown"
