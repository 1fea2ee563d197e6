"""How much memory GPUs have, as NVIDIA's driver says.

TensorFlow 2.21 does not tell: `tf.config.experimental.get_device_details` has a GPU's
name and compute capability, `get_memory_info` what is in use, and what the C++ runtime
logs and `device_lib` return is what TensorFlow means to take. The driver's library is
the one that TensorFlow itself loads, numbers GPUs in the same order, and follows
CUDA_VISIBLE_DEVICES. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from strategies.device_config import DeviceConfig
from strategies.settings import UsageError


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
