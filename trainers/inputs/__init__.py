"""Data sets, and the order in which a run sees their examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trainers.data_config import DataConfig

if TYPE_CHECKING:
    from trainers.inputs.data import Data


def load(config: DataConfig) -> Data:
    """Opens the data set of that name: `load` of the module of the same name here.

    Raises:
      UsageError: it is not there, is damaged, or does not fit its description.
    """
    return importlib.import_module(f"trainers.inputs.{config.dataset}").load(config)
