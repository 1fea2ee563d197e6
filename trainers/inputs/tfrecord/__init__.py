"""TFRecord files as a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.config.data import DataConfig
    from trainers.inputs.sources import Data


def load(config: DataConfig) -> Data:
    """Opens the files of --data_path.

    Raises:
      UsageError: A file is missing, is damaged, or does not fit --record_schema.
    """
    # Importing any module imports its package first, and some modules of this one must
    # not import TensorFlow.
    from trainers.inputs.tfrecord import dataset

    return dataset.load(config)
