"""How much memory GPUs have, as NVIDIA's driver says.

TensorFlow 2.21 does not tell: `tf.config.experimental.get_device_details` has a GPU's
name and compute capability, `get_memory_info` what is in use, and what the C++ runtime
logs and `device_lib` return is what TensorFlow means to take. The driver's library is
the one that TensorFlow itself loads, numbers GPUs in the same order, and follows
CUDA_VISIBLE_DEVICES. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol


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
