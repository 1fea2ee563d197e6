"""The schema of TFRecord examples, and their parsing.

A schema is written `name:type:shape,name:type`, such as
`image:float32:28x28x1,label:int64`: one input, then the label.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.inputs.tfrecord.reader import Records

# Minimum bytes of one value in a serialized Example: an int64 is a varint, a float is
# always four bytes.
_FEWEST_BYTES = {"int64": 1, "float32": 4}
_STORED_IN = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}
# Message of TensorFlow's error for an example with an invalid value.
MISMATCH = "an example does not match --record_schema"
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")

# A larger label cannot be a class. The model has one output per class, so that one
# wrong value would need more memory than there is.
LARGEST_LABEL = 999_999


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

    def mismatch(self, stored: Mapping[str, Any]) -> str | None:
        """Returns why the features of an Example do not fit; None if they do."""
        if self.name not in stored:
            names = ", ".join(sorted(map(ascii, stored))) or "none"
            return f"it has no feature {self.name!r}; it has {names}"
        kind = stored[self.name].WhichOneof("kind")
        if kind != _STORED_IN[self.dtype]:
            return f"{self.name!r} is not {self.dtype} but {_dtype(kind)}"
        num_values = len(getattr(stored[self.name], kind).value)
        wanted = math.prod(self.shape)
        if num_values != wanted:
            return f"{self.name!r} has {num_values} values, not {wanted}"
        return None


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

    def parse(self, payloads: Any, largest_label: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Parses and checks examples, eagerly or as graph operations.

        Args:
          payloads: Serialized Examples, string [n].
          largest_label: Upper bound of labels, included.

        Returns:
          Features float32 [n, *input.shape] and labels int64 [n].

        Raises:
          tf.errors.InvalidArgumentError: An example does not match; `mismatch` finds
            out why.
        """
        wanted = {
            f.name: tf.io.FixedLenFeature(f.shape, f.dtype)
            for f in (self.input, self.label)
        }
        with tf.device("/device:CPU:0"):
            parsed = tf.io.parse_example(payloads, wanted)
            features = tf.cast(parsed[self.input.name], tf.float32)
            labels = parsed[self.label.name]
            is_class = tf.reduce_all((labels >= 0) & (labels <= largest_label))
            is_finite = tf.reduce_all(tf.math.is_finite(features))
            check = tf.debugging.Assert(is_class & is_finite, [MISMATCH])
        with tf.control_dependencies([check]):
            return tf.identity(features), tf.identity(labels)

    def fewest_bytes(self) -> int:
        """Returns the minimum size of a serialized example that matches."""
        return math.prod(self.input.shape) * _FEWEST_BYTES[self.input.dtype]

    def mismatch(self, payload: bytes, largest_label: int) -> str | None:
        """Returns why a record does not match and what to do; None if it matches."""
        change = f"change --record_schema={self} or write the file again"
        try:
            stored = tf.train.Example.FromString(payload).features.feature
        except Exception:  # The class of the error depends on protobuf's backend.
            return f"it is not a tf.train.Example; {change}"
        for feature in (self.input, self.label):
            problem = feature.mismatch(stored)
            if problem:
                return f"{problem}; {change}"
        if not np.isfinite(stored[self.input.name].float_list.value).all():
            return (
                f"{self.input.name!r} holds a value that is not a finite number, "
                "which nothing can be learned from; write the file again"
            )
        (label,) = stored[self.label.name].int64_list.value
        if not 0 <= label <= largest_label:
            is_chosen = largest_label != LARGEST_LABEL
            return (
                f"{self.label.name!r} is {label}: labels number the classes from 0 to "
                f"at most {largest_label}; write the file again"
                f"{', or raise --num_classes' if is_chosen else ''}"
            )
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


def examples_of(
    records: Records, schema: RecordSchema, num_classes: int | None = None
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
    largest = LARGEST_LABEL if num_classes is None else num_classes - 1
    cause: Exception | None = None
    # TensorFlow allocates the result before it reads the examples. A shape that no
    # example can fill must not reach it.
    if min(map(len, records.payloads)) >= schema.fewest_bytes():
        try:
            features, labels = schema.parse(records.payloads, largest)
            return features.numpy(), labels.numpy()
        except (tf.errors.OpError, ValueError) as error:
            cause = error
    for index, payload in enumerate(records.payloads):
        problem = schema.mismatch(payload, largest)
        if problem:
            raise UsageError(f"{records.place(index)}: {problem}.") from cause
    raise UsageError(
        f"{records.place(0)}: this example or one of the {len(records.payloads) - 1} "
        f"after it cannot be parsed as --record_schema={schema}; change it or write "
        "the file again."
    ) from cause
