"""Start of training processes by fork from a process that has done their imports."""

import importlib

from strategies.processes.starter import ProcessStarter, WarmStarter
from trainers.cli.tensorflow_setup import imported_fast
from trainers.config.config import Config

# Modules that a training process imports after TensorFlow and Keras.
_IMPORTED_BY_A_RUN = (
    "matplotlib.backends.backend_agg", "matplotlib.figure",
    "tensorboard.summary", "PIL.PngImagePlugin",
    "trainers.modes.train", "trainers.modes.keras_training",
    "strategies.devices.assignment", "strategies.cluster.failure_detection",
)  # fmt: skip


def starter_of(config: Config) -> ProcessStarter:
    """Returns the starter of the processes of a run, a comparison or a verification."""
    # With --verbose each process shows what TensorFlow logs while it is imported.
    if not config.run.warm_start or config.run.verbose:
        return ProcessStarter()
    return WarmStarter(__name__)


def preload() -> None:
    """Imports what every training process needs; called in the template."""
    with imported_fast():
        importlib.import_module("tensorflow")
        importlib.import_module("keras")
    for name in _IMPORTED_BY_A_RUN:
        importlib.import_module(name)
