"""Parser of the --devices flag.

This module does not import TensorFlow.
"""

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
    """Choice of GPUs, or of logical devices of the CPU; neither without --devices.

    Attributes:
      gpus: Numbers of the GPUs among the GPUs that TensorFlow sees, in ascending order.
      num_cpus: Number of logical devices of the CPU.
      is_soft: True if missing devices may be left out, or replaced by the CPU.
    """

    # Ascending, because TensorFlow numbers visible GPUs in this order, also if the user
    # lists them in another order.
    gpus: tuple[int, ...] = ()
    num_cpus: int = 0
    is_soft: bool = False

    @property
    def num_devices(self) -> int:
        return len(self.gpus) or self.num_cpus

    def __str__(self) -> str:
        """Returns the flag as on the command line."""
        if self.num_cpus:
            return f"--devices=cpu:{self.num_cpus}"
        return f"--devices={','.join(f'gpu:{number}' for number in self.gpus)}"

    def first(self) -> str:
        """Returns a value of --devices for one device of the same kind."""
        return "cpu:1" if self.num_cpus else f"gpu:{self.gpus[0]}"


def parse_devices(items: Sequence[str], is_soft: bool = False) -> DeviceChoice:
    """Parses the items of --devices, of which there may be none.

    Raises:
      UsageError: The items are neither GPUs nor one number of logical CPU devices.
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
    # The sum of one number or of none.
    return DeviceChoice(tuple(sorted(gpus)), sum(cpus), is_soft)


def _refusal(items: Sequence[str], problem: str) -> UsageError:
    return UsageError(
        f"--devices={shown(','.join(items))} is not accepted: {problem}; give "
        f"{_EXAMPLES}."
    )
