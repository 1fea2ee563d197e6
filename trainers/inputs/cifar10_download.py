"""The published archive of CIFAR-10, downloaded once by Keras.

Keras checks its SHA-256. This package reads the archive without unpacking it. Keras's
own `load_data` unpacks it, and then executes as pickles all files in that folder
(keras/src/datasets/cifar.py, `load_batch`).
"""

from __future__ import annotations

import os
from pathlib import Path

from strategies.common.errors import UsageError
from strategies.common.native_log import native_log_hidden
from trainers.config.data import DataConfig

ORIGIN = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
# File name in Keras's cache (keras/src/utils/file_utils.py, `get_file`).
FILE_NAME = "cifar-10-batches-py-target_archive"


def fetch(config: DataConfig) -> None:
    """Downloads the archive if it is needed and not in Keras's cache.

    Raises:
      UsageError: The archive cannot be downloaded.
    """
    kept = _home() / "datasets" / FILE_NAME
    if config.data_path is None and not kept.is_file():
        archive()


def archive() -> Path:
    """Returns the path of the archive; downloads it if it is missing or damaged.

    Raises:
      UsageError: The archive cannot be downloaded.
    """
    with native_log_hidden():
        # Importing Keras takes seconds. A launcher that finds the file does not need
        # it.
        import keras
    try:
        return Path(
            keras.utils.get_file(
                FILE_NAME, origin=ORIGIN, file_hash=SHA256, cache_dir=str(_home())
            )
        )
    # Keras raises a plain Exception for errors of urllib.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--dataset=cifar10 cannot be downloaded ({reason}): give --data_path with "
            "the published cifar-10-binary.tar.gz or cifar-10-python.tar.gz."
        ) from error


def _home() -> Path:
    """Returns Keras's folder."""
    return Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
