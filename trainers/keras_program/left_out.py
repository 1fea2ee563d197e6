"""Strategies, devices, threads and backups of a program that a run decides."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.replaced import replaced
from trainers.keras_program.fit_arguments import FitArguments

Warn = Callable[[str], None]

# Some are at two places, as different classes.
_STRATEGIES = (
    "tf.distribute.MirroredStrategy",
    "tf.distribute.OneDeviceStrategy",
    "tf.distribute.MultiWorkerMirroredStrategy",
    "tf.distribute.ParameterServerStrategy",
    "tf.distribute.experimental.CentralStorageStrategy",
    "tf.distribute.experimental.MultiWorkerMirroredStrategy",
    "tf.distribute.experimental.ParameterServerStrategy",
)

# Functions that raise an error once TensorFlow has started, as it has before a program
# runs, or undo what a run has set up, and the reason why they can be left out.
_HAS_STARTED = "TensorFlow has started before the program"
_BY_DEVICES = f"{_HAS_STARTED}; --devices chooses them"
_BY_GROWTH = f"{_HAS_STARTED}; --memory_growth sets it"
_BY_TENSORFLOW = "--strategy distributes with TensorFlow"
# Determinism forbids tf.timestamp.
_BY_CLOCK = (
    "it forbids an operation by which steps are timed. On CPUs runs are equal to the "
    "bit without it, unless a parallel map of tf.data draws random numbers: leave out "
    "its num_parallel_calls"
)
_SETTINGS: Mapping[str, str] = {
    "tf.config.set_visible_devices": _BY_DEVICES,
    "tf.config.set_logical_device_configuration": _BY_DEVICES,
    "tf.config.threading.set_inter_op_parallelism_threads": (
        f"{_HAS_STARTED}; --set=threads.inter_op_threads sets them"
    ),
    "tf.config.threading.set_intra_op_parallelism_threads": (
        f"{_HAS_STARTED}; --set=threads.intra_op_threads sets them"
    ),
    "tf.config.experimental.set_memory_growth": _BY_GROWTH,
    "tf.config.experimental.set_visible_devices": _BY_DEVICES,
    "tf.config.experimental.set_virtual_device_configuration": _BY_DEVICES,
    "tf.config.experimental.enable_op_determinism": _BY_CLOCK,
    # Keras would be imported anew, with a `fit` that is not taken over.
    "keras.config.set_backend": _BY_TENSORFLOW,
}
_PACKAGES = {"tf": (tf, tf.compat.v2, tf.compat.v1), "keras": (keras,)}

# It has no effect in the shell either.
_DETERMINISM = "TF_DETERMINISTIC_OPS"
# Variables of the environment that TensorFlow and Keras have read before a program
# runs, the value of each that changes nothing, and the reason for the others.
_VARIABLES: Mapping[str, tuple[str | None, str]] = {
    "CUDA_VISIBLE_DEVICES": (None, _BY_DEVICES),
    "TF_FORCE_GPU_ALLOW_GROWTH": (None, _BY_GROWTH),
    "KERAS_BACKEND": ("tensorflow", _BY_TENSORFLOW),
    "TF_USE_LEGACY_KERAS": ("0", "Keras 3 trains"),
    _DETERMINISM: ("0", _BY_CLOCK),
}


class _LeftOut(tf.distribute.Strategy):
    """Stands for a strategy that a program makes: its scope has no effect.

    It has the other methods of TensorFlow's default strategy, with one replica, which
    gets whole batches.

    Attributes:
      num_replicas_in_sync: Number of replicas that the strategy would have on this
        machine, alone. Programs multiply their batch size by it, so that it has to be
        the same under every --strategy.
      cluster_resolver: Cluster without tasks, as of a MultiWorkerMirroredStrategy on
        one machine, where programs ask it whether to write; None of the others.
    """

    num_replicas_in_sync: int = 1
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None

    def __init__(self, default: tf.distribute.Strategy, warn: Warn):
        """Has one replica, that of the default strategy."""
        super().__init__(default.extended)
        self._warn = warn

    def scope(self) -> contextlib.AbstractContextManager[_LeftOut]:
        """Returns a scope in which variables belong to no strategy."""
        return contextlib.nullcontext(self)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Calls a function once, with what all replicas would have got."""
        if self.num_replicas_in_sync > 1:
            self._warn(
                f"the program calls run of a {type(self).__name__}: here it calls the "
                "function once, with a whole batch, and not with one for each of "
                f"{self.num_replicas_in_sync} replicas. Divide no mean over a batch by "
                "num_replicas_in_sync"
            )
        return super().run(*args, **kwargs)

    @property
    def _cluster_coordinator(self) -> NoReturn:
        # TensorFlow asks for it first.
        raise UsageError(
            "the program makes a ClusterCoordinator, whose loop is not taken over: "
            "call keras.Model.fit, which --strategy=parameter_server trains."
        )


def without_backup(arguments: FitArguments, warn: Warn) -> FitArguments:
    """Returns the arguments of a `fit` without BackupAndRestore.

    In a resumed run it would load its weights after the checkpoint.
    """
    kept = [
        callback
        for callback in arguments.callbacks
        if not isinstance(callback, keras.callbacks.BackupAndRestore)
    ]
    if len(kept) < len(arguments.callbacks):
        warn(
            "BackupAndRestore of the program has no effect: a run has checkpoints "
            "(--checkpoint_every_steps), from which --resume=auto continues"
        )
    return dataclasses.replace(arguments, callbacks=kept)


def variables_left_out(before: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each variable that is not as `before` the program ran."""
    for name, (neutral, reason) in _VARIABLES.items():
        usual = neutral if name == _DETERMINISM else before.get(name, neutral)
        value = os.environ.get(name)
        if value not in (None, usual):
            yield f"{name}={value} of os.environ has no effect: {reason}"


@contextlib.contextmanager
def settings_left_out(warn: Warn) -> Iterator[None]:
    """Replaces strategies and settings of TensorFlow in the block that runs a program.

    A warning is printed where the program uses one of them.
    """
    default, devices = tf.distribute.get_strategy(), _Devices()
    replacements: list[tuple[str, Callable[[str, Any], Any]]] = [
        *((path, lambda n, _: _stand_in(n, default, warn)) for path in _STRATEGIES),
        *(
            (path, functools.partial(_without_effect, warn, path, reason))
            for path, reason in _SETTINGS.items()
        ),
        ("tf.config.set_logical_device_configuration", devices.dividing),
        ("tf.config.experimental.set_virtual_device_configuration", devices.dividing),
        ("tf.config.list_logical_devices", devices.listing),
        ("tf.config.experimental.list_logical_devices", devices.listing),
    ]
    with contextlib.ExitStack() as block:
        for path, replacement in replacements:
            for place, name in _places(path):
                block.enter_context(replaced(place, [name], replacement))
        # Programs take it where they find no TPU. TensorFlow refuses another strategy
        # within its scope.
        block.enter_context(
            replaced(type(default), ["scope"], lambda *_: _without_scope)
        )
        yield


def _places(path: str) -> Iterator[tuple[Any, str]]:
    """Yields modules that have what a path names, and its name there."""
    package, *modules, name = path.split(".")
    for root in _PACKAGES[package]:
        place = functools.reduce(getattr, modules, root)
        # tf.compat.v1 is without some.
        if hasattr(place, name):
            yield place, name


class _Devices:
    """Logical devices that a program would have without a run.

    The run's own depend on --strategy and its replicas. Programs make a strategy of
    the listed devices, and multiply their batch size by its number of replicas.
    """

    def __init__(self) -> None:
        """No device is divided."""
        self._divided: dict[str, int] = {}

    def dividing(
        self, _: str, without_effect: Callable[..., None]
    ) -> Callable[..., None]:
        """Returns a setting that notes into how many devices it would divide one."""

        @functools.wraps(without_effect)
        def divide(device: Any, logical_devices: Any) -> None:
            without_effect(device, logical_devices)
            self._divided[device.name] = len(logical_devices or [None])

        return divide

    def listing(self, _: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what replaces `tf.config.list_logical_devices`."""

        @functools.wraps(usual)
        def list_logical_devices(device_type: str | None = None) -> list[Any]:
            # Keras asks for GPUs to choose operations: none that a flag hides.
            kinds = dict.fromkeys(one.device_type for one in usual(device_type))
            return [
                tf.config.LogicalDevice(f"/device:{kind}:{number}", kind)
                for kind in kinds
                for number in range(self._count(kind))
            ]

        return list_logical_devices

    def _count(self, kind: str) -> int:
        devices = tf.config.list_physical_devices(kind)
        return sum(self._divided.get(device.name, 1) for device in devices)


def _stand_in(name: str, default: tf.distribute.Strategy, warn: Warn) -> type[_LeftOut]:
    def __init__(
        self: _LeftOut, devices: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        _LeftOut.__init__(self, default, warn)
        # Of the arguments of the strategies most have no effect.
        devices = kwargs.get("compute_devices", devices)
        count = max(len(tf.config.list_physical_devices("GPU")), 1)
        if name == "OneDeviceStrategy":
            count = 1
        elif isinstance(devices, Sequence) and not isinstance(devices, str):
            # As TensorFlow takes an empty list.
            count = len(devices) or count
        self.num_replicas_in_sync = count
        if name == "MultiWorkerMirroredStrategy":
            self.cluster_resolver = (
                tf.distribute.cluster_resolver.SimpleClusterResolver(
                    tf.train.ClusterSpec({})
                )
            )
        warn(
            f"the program makes a {name}, whose scope has no effect: --strategy "
            f"chooses one. Its num_replicas_in_sync is {count}, as on this machine "
            "alone"
        )

    return type(name, (_LeftOut,), {"__init__": __init__})


def _without_scope(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext(strategy)


def _without_effect(
    warn: Warn, path: str, reason: str, name: str, function: Callable[..., Any]
) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        warn(f"the program calls {path}, which has no effect: {reason}")

    return call
