"""NVIDIA GPUs: their memory, and their division among tasks.

TensorFlow 2.21 does not report the memory of a GPU:
`tf.config.experimental.get_device_details` has a GPU's name and compute capability,
`get_memory_info` the memory in use, and the log of the C++ runtime and `device_lib` the
memory that TensorFlow means to take. The driver's library is the one that TensorFlow
itself loads; it numbers GPUs in the same order and follows CUDA_VISIBLE_DEVICES. Nothing
here imports TensorFlow.
"""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from strategies.common.errors import UsageError
from strategies.devices.config import DeviceConfig


class Driver(Protocol):
    """Functions of the CUDA driver API; each returns 0 if it succeeded."""

    def cuInit(self, flags: Any) -> int:
        """Finds the GPUs of this process."""

    def cuDeviceGetCount(self, count: Any) -> int:
        """Writes how many there are."""

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        """Writes the handle of one by its number."""

    def cuDeviceTotalMem_v2(self, num_bytes: Any, device: Any) -> int:
        """Writes how much memory it has, as size_t."""


def load_driver() -> Driver | None:
    """The library of NVIDIA's driver for Linux, or None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def total_memory_mib(driver: Driver | None) -> tuple[int, ...]:
    """MiB of each GPU by TensorFlow's number of it; empty if the driver does not say.

    See NVIDIA's CUDA Driver API, section Device Management. No context is made, so
    that nothing is taken of any GPU.
    """
    count = ctypes.c_int()
    if driver is None or driver.cuInit(ctypes.c_uint(0)):
        return ()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for ordinal in range(count.value):
        device, num_bytes = ctypes.c_int(), ctypes.c_size_t()
        if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)):
            return ()
        if driver.cuDeviceTotalMem_v2(ctypes.byref(num_bytes), device):
            return ()
        found.append(num_bytes.value >> 20)
    return tuple(found)


def memory_limit_mib(config: DeviceConfig, gpu: int, totals: Sequence[int]) -> int:
    """Most memory to take of one GPU, MiB.

    Args:
      config: with a limit or a fraction.
      gpu: its number.
      totals: MiB of each GPU by number; empty if that is not known.

    Raises:
      UsageError: it has not so much, or a fraction of it is not known.
    """
    total = totals[gpu] if gpu < len(totals) else None
    limit = config.memory_limit_mib
    if limit is None:
        if total is None:
            raise UsageError(
                f"--memory_fraction={config.memory_fraction} needs the whole memory of "
                f"gpu:{gpu}, and NVIDIA's driver does not say it: give "
                "--memory_limit_mib."
            )
        return max(1, int(total * (config.memory_fraction or 1.0)))
    if total is not None and limit > total:
        raise UsageError(
            f"--memory_limit_mib={limit} is more than the {total:,} MiB of gpu:{gpu}: "
            "lower it."
        )
    return limit


# Of NVIDIA's driver for Linux: one folder for each GPU.
_DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


def visible_gpus(
    environment: Mapping[str, str], driver: pathlib.Path = _DRIVER
) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that this process may use."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        count = len(list(driver.iterdir())) if driver.is_dir() else 0
        return tuple(map(str, range(count)))
    names = [name.strip() for name in listed.split(",")]
    # CUDA itself stops at the first that is not there, and -1 never is.
    stop = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:stop])


def divide(gpus: Sequence[str], num_tasks: int) -> list[tuple[str, ...]]:
    """Equally many for each task; what cannot be divided is left over.

    A process takes nearly all memory of every GPU it sees, so two cannot share one.

    Raises:
      UsageError: there are GPUs, but fewer than tasks.
    """
    if gpus and len(gpus) < num_tasks:
        raise UsageError(
            f"--num_workers={num_tasks} needs a GPU for each, this machine has "
            f"{len(gpus)}: use --num_workers={len(gpus)}, or set CUDA_VISIBLE_DEVICES= "
            "to compute on the CPU."
        )
    each = len(gpus) // num_tasks
    return [tuple(gpus[i * each : (i + 1) * each]) for i in range(num_tasks)]
