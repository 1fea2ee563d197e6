"""Which NVIDIA GPUs the tasks on one machine take. Nothing here imports TensorFlow."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from strategies.settings import UsageError

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
