"""What --devices asks for. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from strategies.common.errors import UsageError
from strategies.common.text import shown

_ITEM = re.compile(r"(cpu|gpu):([0-9]{1,4})", re.IGNORECASE)
_EXAMPLES = (
    "gpu:0,gpu:2 for two GPUs by their numbers, or cpu:4 for a CPU split in four"
)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Some GPUs, or the CPU split into logical devices; neither if nothing is chosen.

    Attributes:
      gpus: their numbers among those that TensorFlow sees, in ascending order, which is
        the order TensorFlow numbers them in whatever order they are asked for.
      num_cpus: logical devices of the CPU.
      is_soft: what is missing may be left out, or replaced by the CPU.
    """

    gpus: tuple[int, ...] = ()
    num_cpus: int = 0
    is_soft: bool = False

    @property
    def num_devices(self) -> int:
        return len(self.gpus) or self.num_cpus

    def __str__(self) -> str:
        """As on the command line."""
        if self.num_cpus:
            return f"--devices=cpu:{self.num_cpus}"
        return f"--devices={','.join(f'gpu:{number}' for number in self.gpus)}"

    def first(self) -> str:
        """What --devices takes for one device of the same kind."""
        return "cpu:1" if self.num_cpus else f"gpu:{self.gpus[0]}"


def parse_devices(items: Sequence[str], is_soft: bool = False) -> DeviceChoice:
    """Reads what --devices lists.

    Args:
      items: of the list; none for no choice.
      is_soft: as in `DeviceChoice`.

    Raises:
      UsageError: it is not a list of GPUs and not one number of logical CPU devices.
    """
    found: dict[str, list[int]] = {"cpu": [], "gpu": []}
    for item in items:
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _refusal(items, f"{shown(item)!r} is no device")
        found[match[1].lower()].append(int(match[2]))
    cpus, gpus = found["cpu"], found["gpu"]
    if cpus and gpus:
        raise _refusal(items, "replicas are on GPUs or on the CPU, not on both")
    if len(cpus) > 1:
        raise _refusal(items, "the number after cpu: is how many, and is given once")
    if cpus == [0]:
        raise _refusal(items, "the number after cpu: is how many, and at least 1")
    twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
    if twice is not None:
        raise _refusal(items, f"gpu:{twice} is listed twice")
    return DeviceChoice(tuple(sorted(gpus)), sum(cpus), is_soft)


def _refusal(items: Sequence[str], problem: str) -> UsageError:
    return UsageError(
        f"--devices={shown(','.join(items))} is not accepted: {problem}; give "
        f"{_EXAMPLES}."
    )
