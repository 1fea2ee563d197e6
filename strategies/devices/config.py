"""Settings of a process for its devices.

This module does not import TensorFlow.
"""

import dataclasses
from typing import ClassVar

from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, option_of, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Memory of GPUs, and where operations are."""

    group: ClassVar[str] = "device"

    log_device_placement: bool = setting(
        False,
        "Write the device of every operation and variable, as TensorFlow placed them, "
        "to the log of the run and to TensorBoard.",
    )
    memory_growth: bool = setting(
        False,
        "Take the memory of a GPU as it is needed. Default: nearly all of it at once.",
    )
    memory_limit_mib: int | None = setting(
        None, "Most memory to take of each GPU, MiB.", minimum=1, has_flag=False
    )
    memory_fraction: float | None = setting(
        None,
        "The same as a fraction of the GPU's whole memory.",
        above=0,
        maximum=1,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        given = self.memory_settings()
        if len(given) > 1:
            raise UsageError(
                f"{' and '.join(given)} say in different ways how much memory of a "
                "GPU to take: give one of them."
            )

    def memory_settings(self) -> list[str]:
        """Returns the given settings of GPU memory, as on the command line."""
        given = []
        for field in dataclasses.fields(self):
            value, option = getattr(self, field.name), option_of(type(self), field)
            # False and None are the defaults: nothing is given.
            if field.name.startswith("memory_") and value not in (None, False):
                given.append(option if value is True else f"{option}={value}")
        return given
