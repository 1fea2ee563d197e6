"""From records to the arrays that are trained on, each of them checked."""

from __future__ import annotations

import numpy as np

from strategies.settings import UsageError
from trainers.inputs.record_schema import PlacedRecords, RecordSchema

# A larger label is not the number of a class. The model has an output for each
# class, so that one stray value would ask for more memory than there is.
LARGEST_LABEL = 999_999


def examples_of(
    records: PlacedRecords, schema: RecordSchema, num_classes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Parses and checks records.

    Args:
      records: serialized Examples, at least one.
      schema: what they hold.
      num_classes: labels must be less; None where they themselves say how many.

    Returns:
      Features float32 [n, *shape of the schema's input] and labels int64 [n].

    Raises:
      UsageError: a record does not match; the message begins with its place.
    """
    features, labels = schema.parse(records)
    largest = LARGEST_LABEL if num_classes is None else num_classes - 1
    _check_labels(records, labels, schema, largest)
    _check_finite(records, features, schema)
    return features.astype(np.float32, copy=False), labels


def _check_labels(
    records: PlacedRecords, labels: np.ndarray, schema: RecordSchema, largest: int
) -> None:
    is_class = (labels >= 0) & (labels <= largest)
    if not is_class.all():
        index = int(np.argmin(is_class))
        raise UsageError(
            f"{records.place(index)}: {schema.label.name!r} is {labels[index]}: "
            f"labels number the classes from 0 to at most {largest}; write "
            "the file again"
            + ("." if largest == LARGEST_LABEL else ", or raise --num_classes.")
        )


def _check_finite(
    records: PlacedRecords, features: np.ndarray, schema: RecordSchema
) -> None:
    is_finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if not is_finite.all():
        index = int(np.argmin(is_finite))
        raise UsageError(
            f"{records.place(index)}: {schema.input.name!r} holds a value that is not "
            "a finite number, which nothing can be learned from; write the file again."
        )
