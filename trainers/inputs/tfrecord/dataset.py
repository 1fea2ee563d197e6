"""The data set `tfrecord`: TFRecord files in memory or as a stream."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strategies.common.errors import UsageError
from trainers.inputs.record_paths import find_files
from trainers.inputs.sources import ArraySource, Data, hold_out
from trainers.inputs.tfrecord.reader import read_pieces
from trainers.inputs.tfrecord.schema import RecordSchema, examples_of, parse_schema
from trainers.inputs.tfrecord.stream import open_stream

if TYPE_CHECKING:
    from trainers.config.data import DataConfig


def load(config: DataConfig) -> Data:
    """Reads the files at --data_path and, if given, --eval_data_path.

    Without --eval_data_path, `eval_fraction` of the examples is held out. Inputs become
    float32, which rounds whole numbers above 2**24. A stream reads only the lengths of
    records here; evaluation data is always held in memory.

    Returns:
      Data with features float32 [n, *shape of the schema's input]. Its num_classes is
      the largest label of both parts + 1, at least 2; of a stream, --num_classes.

    Raises:
      UsageError: A path, a file, a record or the schema is invalid.
    """
    # Before any file is read: an invalid schema is found at once.
    schema = parse_schema(config.record_schema)
    if config.is_streamed:
        return _load_stream(config, schema)
    features, labels = _read(config.data_path or "", "data_path", schema)
    if config.eval_data_path is None:
        num_classes = max(2, int(labels.max()) + 1)
        return hold_out(features, labels, config.eval_fraction, num_classes)
    eval_features, eval_labels = _read(config.eval_data_path, "eval_data_path", schema)
    return Data(
        train=ArraySource(features, labels),
        evaluation=ArraySource(eval_features, eval_labels),
        input_shape=schema.input.shape,
        # A class may occur in the evaluation data only.
        num_classes=max(2, int(max(labels.max(), eval_labels.max())) + 1),
    )


def damage_of(config: DataConfig) -> UsageError | None:
    """Returns the error for the first damaged record of a stream; None if all match.

    TensorFlow's errors do not name the file of a record. This reads all files again.
    """
    schema = parse_schema(config.record_schema)
    try:
        for path in find_files(config.data_path or "", "data_path"):
            for records in read_pieces(path):
                examples_of(records, schema, config.num_classes)
    except UsageError as error:
        return error
    return None


def _load_stream(config: DataConfig, schema: RecordSchema) -> Data:
    features, labels = _read(
        config.eval_data_path or "", "eval_data_path", schema, config.num_classes
    )
    return Data(
        train=open_stream(
            find_files(config.data_path or "", "data_path"), schema, config
        ),
        evaluation=ArraySource(features, labels),
        input_shape=schema.input.shape,
        num_classes=config.num_classes,
    )


def _read(
    data_path: str, flag: str, schema: RecordSchema, num_classes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Reads features float32 [n, ...] and labels int64 [n] of all files of a path."""

    def read_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
        pieces = [examples_of(p, schema, num_classes) for p in read_pieces(path)]
        features, labels = zip(*pieces, strict=True)
        return np.concatenate(features), np.concatenate(labels)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        # `map` keeps the order of the files.
        parts = list(threads.map(read_file, find_files(data_path, flag)))
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)
