"""Memory of NVIDIA GPUs, and their division among tasks.

TensorFlow 2.21 does not report the memory of a GPU:
`tf.config.experimental.get_device_details` has a GPU's name and compute capability,
`get_memory_info` the memory in use, and the log of the C++ runtime and `device_lib` the
memory that TensorFlow means to take. This module therefore asks the driver's library,
which TensorFlow itself loads. The library numbers GPUs in the same order and follows
CUDA_VISIBLE_DEVICES. This module does not import TensorFlow.
"""

import ctypes
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.devices.config import DeviceConfig


def load_driver() -> ctypes.CDLL | None:
    """Returns the library of NVIDIA's driver for Linux, or None without a driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def total_memory_mib(driver: Any = None) -> tuple[int, ...]:
    """Returns the MiB of each GPU by TensorFlow's number; empty if they are unknown."""
    # NVIDIA's CUDA Driver API, Device Management: each function returns 0 on success.
    driver = driver or load_driver()
    # Without a context these calls take no memory of a GPU.
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
        # Bytes to MiB: 2**20 bytes each.
        found.append(num_bytes.value >> 20)
    return tuple(found)


def memory_limit_mib(config: DeviceConfig, gpu: int, totals: Sequence[int]) -> int:
    """Returns the most memory to take of one GPU, in MiB.

    Args:
      config: Memory settings with a limit or a fraction.
      gpu: Number of the GPU.
      totals: Memory of each GPU by number, in MiB; empty if unknown.

    Raises:
      UsageError: The GPU has less memory, or the fraction's whole is unknown.
    """
    total = totals[gpu] if gpu < len(totals) else None
    limit = config.memory_limit_mib
    if limit is None:
        if total is None:
            raise UsageError(
                f"--set=device.memory_fraction={config.memory_fraction} needs the "
                f"whole memory of gpu:{gpu}, and NVIDIA's driver does not say it: give "
                "--set=device.memory_limit_mib."
            )
        return max(1, int(total * (config.memory_fraction or 1.0)))
    if total is not None and limit > total:
        raise UsageError(
            f"--set=device.memory_limit_mib={limit} is more than the {total:,} MiB of "
            f"gpu:{gpu}: lower it."
        )
    return limit


# NVIDIA's driver for Linux has one folder for each GPU here.
_DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


def visible_gpus(
    environment: Mapping[str, str], driver: pathlib.Path = _DRIVER
) -> tuple[str, ...]:
    """Returns this process's GPUs under their names in CUDA_VISIBLE_DEVICES."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        count = len(list(driver.iterdir())) if driver.is_dir() else 0
        return tuple(map(str, range(count)))
    names = [name.strip() for name in listed.split(",")]
    # CUDA itself stops at the first GPU that does not exist, such as -1.
    stop = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:stop])


def divide(gpus: Sequence[str], num_tasks: int) -> list[tuple[str, ...]]:
    """Divides GPUs equally among tasks; the remainder stays unused.

    Raises:
      UsageError: There are GPUs, but fewer than tasks.
    """
    # Two tasks cannot share a GPU: a process takes nearly all memory of every GPU that
    # it sees.
    if gpus and len(gpus) < num_tasks:
        raise UsageError(
            f"--num_workers={num_tasks} needs a GPU for each, this machine has "
            f"{len(gpus)}: use --num_workers={len(gpus)}, or set CUDA_VISIBLE_DEVICES= "
            "to compute on the CPU."
        )
    each = len(gpus) // num_tasks
    return [tuple(gpus[i * each : (i + 1) * each]) for i in range(num_tasks)]
