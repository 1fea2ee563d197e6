"""The data set `tfrecord`: examples from TFRecord files, held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strategies.settings import UsageError
from trainers.inputs.data import ArraySource, Data, hold_out
from trainers.inputs.record_files import Records, read_records
from trainers.inputs.record_schema import RecordSchema, parse_schema

if TYPE_CHECKING:
    from trainers.config import DataConfig

# A larger label is not the number of a class. The model has an output for each
# class, so that one stray value would ask for more memory than there is.
LARGEST_LABEL = 999_999


def load(config: DataConfig) -> Data:
    """Reads the files at --data_path and, if given, --eval_data_path.

    Without --eval_data_path, --eval_fraction of the examples is held out. Inputs
    become float32; whole numbers above 2**24 are rounded by that.

    Returns:
      Data whose features are float32 [n, *shape of the schema's input] and whose
      num_classes is the largest label of both parts + 1, at least 2.

    Raises:
      UsageError: a path, a file, a record or the schema is wrong.
    """
    if config.data_path is None:
        raise UsageError("--data_path is missing: give a TFRecord file or a folder.")
    schema = parse_schema(config.record_schema)
    features, labels = _read(config.data_path, "data_path", schema)
    if config.eval_data_path is None:
        num_classes = max(2, int(labels.max()) + 1)
        return hold_out(features, labels, config.eval_fraction, num_classes)
    eval_features, eval_labels = _read(config.eval_data_path, "eval_data_path", schema)
    return Data(
        train=ArraySource(features, labels),
        evaluation=ArraySource(eval_features, eval_labels),
        input_shape=schema.input.shape,
        num_classes=max(2, int(max(labels.max(), eval_labels.max())) + 1),
    )


def find_files(data_path: str, flag: str) -> list[Path]:
    """The files a path stands for: itself, or *.tfrecord in it sorted by name.

    Args:
      data_path: a file or a folder.
      flag: the flag it came from, to be named in errors.

    Raises:
      UsageError: there is nothing to read there.
    """
    path = Path(data_path)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            files = sorted(file for file in path.glob("*.tfrecord") if file.is_file())
            problem = "is a folder without *.tfrecord files"
        else:
            files = []
            exists = path.exists()
            problem = "is neither a file nor a folder" if exists else "does not exist"
    except OSError as error:
        files = []
        problem = f"cannot be read ({error.strerror})"
    if not files:
        raise UsageError(
            f"--{flag}={data_path} {problem}: give a TFRecord file or a folder of "
            "*.tfrecord files."
        )
    return files


def _read(
    data_path: str, flag: str, schema: RecordSchema
) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [n, ...] and labels int64 [n] of all files of a path."""
    parts = [_read_file(path, schema) for path in find_files(data_path, flag)]
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def _read_file(path: Path, schema: RecordSchema) -> tuple[np.ndarray, np.ndarray]:
    records = read_records(path)
    features, labels = schema.parse(records)
    _check_labels(records, labels, schema)
    _check_finite(records, features, schema)
    return features.astype(np.float32, copy=False), labels


def _check_labels(records: Records, labels: np.ndarray, schema: RecordSchema) -> None:
    is_class = (labels >= 0) & (labels <= LARGEST_LABEL)
    if not is_class.all():
        index = int(np.argmin(is_class))
        raise UsageError(
            f"{records.place(index)}: {schema.label.name!r} is {labels[index]}: "
            f"labels number the classes from 0 to at most {LARGEST_LABEL}; write "
            "the file again."
        )


def _check_finite(records: Records, features: np.ndarray, schema: RecordSchema) -> None:
    is_finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if not is_finite.all():
        index = int(np.argmin(is_finite))
        raise UsageError(
            f"{records.place(index)}: {schema.input.name!r} holds a value that is not "
            "a finite number, which nothing can be learned from; write the file again."
        )
