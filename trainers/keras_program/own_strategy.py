"""Strategies of TensorFlow that a program makes by itself, left out of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from strategies.common.errors import UsageError

# Those that a program can make without a cluster of its own.
_NAMES = ("MirroredStrategy", "OneDeviceStrategy", "MultiWorkerMirroredStrategy")


class _LeftOut:
    """Stands for a strategy that a program makes: its scope has no effect.

    Attributes:
      num_replicas_in_sync: Number of replicas that the strategy would have on this
        machine, alone. Programs multiply their batch size by it, so that it has to be
        the same under every --strategy.
    """

    def __init__(self, devices: Any = None, *args: Any, **kwargs: Any):
        """Takes the arguments of the strategies, of which most have no effect."""
        del args, kwargs
        self.num_replicas_in_sync = self._num_replicas(devices)

    def _num_replicas(self, devices: Any) -> int:
        if isinstance(devices, Sequence) and not isinstance(devices, str):
            return len(devices)
        return max(len(tf.config.list_physical_devices("GPU")), 1)

    def scope(self) -> contextlib.AbstractContextManager[_LeftOut]:
        """Returns a scope in which variables belong to no strategy."""
        return contextlib.nullcontext(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"the program uses {name!r} of a {type(self).__name__} of its own: "
            "--strategy chooses how fit is distributed, and only scope() and "
            "num_replicas_in_sync can stay."
        )


class _LeftOutWithOneDevice(_LeftOut):
    def _num_replicas(self, devices: Any) -> int:
        return 1


@contextlib.contextmanager
def own_strategies_left_out(warn: Callable[[str], None]) -> Iterator[None]:
    """Replaces TensorFlow's strategies in the block, in which a program runs.

    Args:
      warn: Function that prints a warning, called for each strategy that is made.
    """

    def stand_in(name: str) -> type[_LeftOut]:
        kind = _LeftOutWithOneDevice if name == "OneDeviceStrategy" else _LeftOut

        def __init__(self: _LeftOut, *args: Any, **kwargs: Any) -> None:
            kind.__init__(self, *args, **kwargs)
            warn(
                f"the program makes a {name}, whose scope has no effect: --strategy "
                "chooses one. Its num_replicas_in_sync is "
                f"{self.num_replicas_in_sync}, as on this machine alone"
            )

        return type(name, (kind,), {"__init__": __init__})

    originals = {name: getattr(tf.distribute, name) for name in _NAMES}
    for name in _NAMES:
        setattr(tf.distribute, name, stand_in(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(tf.distribute, name, original)
