"""Data sets, and the order in which a run sees their examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from models import factories
from trainers.config.data import DataConfig
from trainers.inputs.record_paths import find_files

if TYPE_CHECKING:
    from trainers.inputs.sources import Data


# Data sets that may be downloaded, and the module that does it.
_DOWNLOADS = {"cifar10": "trainers.inputs.cifar10_download"}


def fetch(config: DataConfig) -> None:
    """Downloads what is needed and missing here, before tasks without a network.

    Raises:
      UsageError: it cannot be downloaded.
    """
    module = _DOWNLOADS.get(config.dataset)
    if module is not None:
        importlib.import_module(module).fetch(config)


def check_paths(config: DataConfig) -> None:
    """What of `load` needs neither TensorFlow nor the content of a file.

    Raises:
      UsageError: there are no files where the configuration says.
    """
    if config.dataset != "tfrecord":
        return
    for flag in ("data_path", "eval_data_path"):
        path = getattr(config, flag)
        if path is not None:
            find_files(path, flag)


def load(config: DataConfig) -> Data:
    """Opens the data set of that name: `load` of the module of the same name here.

    Raises:
      UsageError: it is not there, is damaged, or does not fit its description.
    """
    if factories.is_factory(config.dataset):
        return importlib.import_module("trainers.user_code.data").load(config)
    return importlib.import_module(f"trainers.inputs.{config.dataset}").load(config)
