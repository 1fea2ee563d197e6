"""Data sets, and the order in which a run sees their examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from models import factories
from trainers.config.data import DataConfig
from trainers.inputs.record_paths import find_files

if TYPE_CHECKING:
    from trainers.inputs.sources import Data


def fetch(config: DataConfig) -> None:
    """Downloads the data set if it is missing, before tasks without a network start.

    Raises:
      UsageError: The data set cannot be downloaded.
    """
    if config.dataset == "cifar10":
        # Imported late, because most data sets do not need it.
        from trainers.inputs import cifar10_files

        cifar10_files.fetch(config)


def check_paths(config: DataConfig) -> None:
    """Checks paths, the part of `load` that needs neither TensorFlow nor file contents.

    Raises:
      UsageError: There are no files at a configured path.
    """
    if config.dataset != "tfrecord":
        return
    for flag in ("data_path", "eval_data_path"):
        path = getattr(config, flag)
        if path is not None:
            # Called for its errors.
            find_files(path, flag)


def load(config: DataConfig) -> Data:
    """Opens a data set by the `load` function of its module.

    Raises:
      UsageError: The data set is missing, is damaged, or does not fit its description.
    """
    module = f"trainers.inputs.{config.dataset}"
    if config.dataset == "tfrecord":
        module = "trainers.inputs.tfrecord.dataset"
    elif factories.is_factory(config.dataset):
        module = "trainers.user_code.data"
    return importlib.import_module(module).load(config)
