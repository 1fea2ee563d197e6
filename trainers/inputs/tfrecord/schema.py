"""The schema of TFRecord examples, and their parsing.

A schema is written `name:type:shape,name:type`, such as
`image:float32:28x28x1,label:int64`: one input, then the label.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError

# Minimum bytes of one value in a serialized Example: an int64 is a varint, a float is
# always four bytes.
_FEWEST_BYTES = {"int64": 1, "float32": 4}
_STORED_IN = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")

# Examples that TensorFlow parses together. The number bounds the search for an example
# that does not match, and the memory of parsing.
_CHUNK_EXAMPLES = 1024


class PlacedRecords(Protocol):
    """Serialized Examples with their places, from one file or from several."""

    @property
    def payloads(self) -> Sequence[bytes]: ...

    def place(self, index: int) -> str:
        """Returns the place of a record, in the words that begin an error message."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One named value of every example.

    Attributes:
      name: Key in the Example.
      dtype: "int64" or "float32".
      shape: Shape without the batch dimension; empty for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = [self.name, self.dtype]
        if self.shape:
            words.append("x".join(map(str, self.shape)))
        return ":".join(words)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordSchema:
    """Input and label of every example.

    Attributes:
      input: Input feature, int64 or float32, of any shape.
      label: Label feature, a scalar int64.
    """

    input: Feature
    label: Feature

    def __str__(self) -> str:
        return f"{self.input},{self.label}"

    def parse(self, records: PlacedRecords) -> tuple[np.ndarray, np.ndarray]:
        """Parses examples.

        Args:
          records: Serialized Examples, at least one.

        Returns:
          Inputs [num_records, *input.shape] of the input's type, and labels int64
          [num_records].

        Raises:
          UsageError: An example does not match this schema.
        """
        parts = [
            self._parse_chunk(records, first)
            for first in range(0, len(records.payloads), _CHUNK_EXAMPLES)
        ]
        inputs, labels = zip(*parts, strict=True)
        return np.concatenate(inputs), np.concatenate(labels)

    def _parse_chunk(
        self, records: PlacedRecords, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        payloads = records.payloads[first : first + _CHUNK_EXAMPLES]
        cause: Exception | None = None
        # TensorFlow allocates the result before it reads the examples. A shape that no
        # example can fill must not reach it.
        if min(map(len, payloads)) >= self._fewest_bytes():
            try:
                return self._parse_with_tensorflow(payloads)
            except (tf.errors.OpError, ValueError) as error:
                cause = error
        # Finds the first example that does not match, to name its place.
        for index, payload in enumerate(payloads, first):
            problem = self._mismatch(payload)
            if problem:
                raise UsageError(
                    f"{records.place(index)}: {problem}; change --record_schema="
                    f"{self} or write the file again."
                ) from cause
        raise UsageError(
            f"{records.place(first)}: this example or one of the "
            f"{len(payloads) - 1} after it cannot be parsed as --record_schema="
            f"{self}; change it or write the file again."
        ) from cause

    def _fewest_bytes(self) -> int:
        return math.prod(self.input.shape) * _FEWEST_BYTES[self.input.dtype]

    def _parse_with_tensorflow(
        self, payloads: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        features = (self.input, self.label)
        with tf.device("/device:CPU:0"):
            parsed = tf.io.parse_example(
                payloads,
                {f.name: tf.io.FixedLenFeature(f.shape, f.dtype) for f in features},
            )
        return parsed[self.input.name].numpy(), parsed[self.label.name].numpy()

    def _mismatch(self, payload: bytes) -> str | None:
        """Returns why a record does not match, in words; None if it matches."""
        try:
            stored = tf.train.Example.FromString(payload).features.feature
        except Exception:  # The class of the error depends on protobuf's backend.
            return "it is not a tf.train.Example"
        for feature in (self.input, self.label):
            if feature.name not in stored:
                names = ", ".join(sorted(map(ascii, stored))) or "none"
                return f"it has no feature {feature.name!r}; it has {names}"
            kind = stored[feature.name].WhichOneof("kind")
            if kind != _STORED_IN[feature.dtype]:
                return f"{feature.name!r} is not {feature.dtype} but {_dtype(kind)}"
            num_values = len(getattr(stored[feature.name], kind).value)
            wanted = math.prod(feature.shape)
            if num_values != wanted:
                return f"{feature.name!r} has {num_values} values, not {wanted}"
        return None


def _dtype(kind: str | None) -> str:
    return next((d for d, stored in _STORED_IN.items() if stored == kind), "empty")


def parse_schema(text: str) -> RecordSchema:
    """Parses the value of --record_schema.

    Raises:
      UsageError: The text is not a schema of one input and one label.
    """
    features = [_parse_feature(text, part.strip()) for part in text.split(",")]
    if len(features) != 2:
        raise _not_accepted(text, f"it names {len(features)} features, not two")
    inputs, label = features
    if label.dtype != "int64" or label.shape:
        raise _not_accepted(text, f"the label {str(label)!r} is not a single int64")
    if inputs.name == label.name:
        raise _not_accepted(text, f"both features are named {label.name!r}")
    return RecordSchema(input=inputs, label=label)


def _parse_feature(text: str, part: str) -> Feature:
    name, *rest = part.split(":")
    if not name or len(rest) not in (1, 2):
        raise _not_accepted(text, f"{part!r} is not name:type or name:type:shape")
    if rest[0] not in _FEWEST_BYTES:
        raise _not_accepted(text, f"the type {rest[0]!r} is unknown")
    if len(rest) == 1:
        return Feature(name=name, dtype=rest[0])
    if not _SHAPE.fullmatch(rest[1]):
        raise _not_accepted(text, f"the shape {rest[1]!r} is not like 5 or 28x28x1")
    return Feature(name=name, dtype=rest[0], shape=tuple(map(int, rest[1].split("x"))))


def _not_accepted(text: str, why: str) -> UsageError:
    return UsageError(
        f"--record_schema={text!r} is not accepted: {why}; give one input and then "
        "the label, with types int64 or float32, such as "
        "image:float32:28x28x1,label:int64."
    )


# A larger label cannot be a class. The model has one output per class, so that one
# wrong value would need more memory than there is.
LARGEST_LABEL = 999_999


def examples_of(
    records: PlacedRecords, schema: RecordSchema, num_classes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Parses and checks records.

    Args:
      records: Serialized Examples, at least one.
      schema: Schema of the records.
      num_classes: Upper bound of labels, not included; None if the labels determine it.

    Returns:
      Features float32 [n, *shape of the schema's input] and labels int64 [n].

    Raises:
      UsageError: A record does not match; the message begins with its place.
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
        # `argmin` of booleans is the index of the first False.
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
