"""Data sets as examples that are read by index.

Reading by index, rather than as a stream, makes the order of examples a property of the
run: a run can start at any step, on any number of replicas.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import GlobalBatches
from trainers.inputs.augmentation import Augment
from trainers.inputs.shuffling import Order


class Source(Protocol):
    """Examples addressed by index."""

    @property
    def num_examples(self) -> int: ...

    @property
    def example_bytes(self) -> int | None:
        """Bytes of features and labels of one example, if steps may be read together.

        None where reading several steps together might take long, or where the result
        depends on which examples are read together.
        """

    def tensors(self) -> Any:
        """Returns the tensors that `read` reads from; any process may hold a copy."""

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        """Reads features and labels of some examples, as graph operations.

        Args:
          tensors: Result of `tensors`, perhaps copied to another process.
          indices: Indices of examples, int64 [n], each from 0 to num_examples - 1.

        Returns:
          Features [n, ...] and labels [n, ...], in the order of `indices`.
        """


class NoExamples:
    """A source without examples, where a program holds out none."""

    num_examples = 0
    example_bytes = None

    def tensors(self) -> NoReturn:
        raise ValueError("there are no examples")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise ValueError("there are no examples")


class StreamedSource(abc.ABC):
    """Examples that are read one after the other; subclasses satisfy `Source`."""

    # Their size may change, and `batches` reads steps together.
    example_bytes = None

    @property
    @abc.abstractmethod
    def num_examples(self) -> int: ...

    def tensors(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `batches`")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise TypeError("a stream cannot be read by index: see `batches`")

    @abc.abstractmethod
    def few(self, count: int) -> tuple[Any, Any]:
        """Returns features and labels of the first examples."""

    @abc.abstractmethod
    def batches(self, order: Order, first_step: int, last_step: int) -> GlobalBatches:
        """Returns the batches of steps from `first_step` to before `last_step`.

        `order` assigns steps to epochs.
        """


def as_tuples(values: Any) -> Any:
    """Converts lists in a structure to tuples; tf.data converts lists to tensors."""
    if isinstance(values, Mapping):
        return {name: as_tuples(value) for name, value in values.items()}
    # A named tuple keeps its names.
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*map(as_tuples, values))
    if isinstance(values, (list, tuple)):
        return tuple(map(as_tuples, values))
    return values


@functools.cache
def read_counter() -> tf.Variable:
    """Returns the number of batches that resumed runs have read again, int64 scalar."""
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def counted(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Counts each element of a data set when it is read: the watchdog looks there.

    Args:
      batches: Data set of tuples.
    """

    def count(*parts: Any) -> tuple[Any, ...]:
        read_counter().assign_add(1)
        return parts

    return batches.map(tf.autograph.experimental.do_not_convert(count))


def first_examples(source: Source, most: int) -> tuple[Any, Any]:
    """Returns features and labels of the first `most` examples, or of all."""
    count = min(most, source.num_examples)
    if isinstance(source, StreamedSource):
        return source.few(count)
    return source.read(source.tensors(), tf.range(count, dtype=tf.int64))


def spread_examples(source: Source, most: int) -> tuple[Any, Any]:
    """Returns features and labels of `most` examples from the first to the last.

    A stream gives its first ones.
    """
    if isinstance(source, StreamedSource):
        return first_examples(source, most)
    count = min(most, source.num_examples)
    places = np.linspace(0, source.num_examples - 1, count).astype(np.int64)
    return source.read(source.tensors(), tf.constant(places))


class ArraySource:
    """Examples held in memory."""

    def __init__(self, features: Any, labels: Any):
        """Keeps arrays [num_examples, ...], or structures of them, on the host.

        Raises:
          UsageError: The arrays have different numbers of examples.
        """
        sizes = {len(array) for array in tf.nest.flatten((features, labels))}
        if len(sizes) != 1:
            raise UsageError(
                "the data set has arrays of "
                f"{' and '.join(map(str, sorted(sizes)))} examples: give each example "
                "features and labels."
            )
        (self.num_examples,) = sizes
        with tf.device("/device:CPU:0"):
            self._tensors = tf.nest.map_structure(tf.constant, (features, labels))

    @property
    def example_bytes(self) -> int:
        arrays = tf.nest.flatten(self._tensors)
        return sum(a.shape[1:].num_elements() * a.dtype.size for a in arrays)

    def tensors(self) -> tuple[Any, Any]:
        return self._tensors

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        return tf.nest.map_structure(lambda values: tf.gather(values, indices), tensors)


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedSource:
    """Examples that are stored in one form and read in another.

    Attributes:
      stored: Source of the stored form, such as whole images in single bytes.
      prepare: Function from stored features [n, ...] to features [n, ...], row by row.
    """

    stored: Source
    prepare: Callable[[Any], Any]
    # `prepare` may be slow: several steps at once would delay the first.
    example_bytes = None

    @property
    def num_examples(self) -> int:
        return self.stored.num_examples

    def tensors(self) -> Any:
        return self.stored.tensors()

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        features, labels = self.stored.read(tensors, indices)
        return self.prepare(features), labels


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """A data set, ready for training.

    Attributes:
      train: Training examples; a `RecordStream` cannot be read by index.
      evaluation: Held-out examples; `NoExamples` for none.
      input_shape: Shape of one example's features, without the batch dimension.
      num_classes: Number of classes; labels are int64 from 0 to num_classes - 1.
      num_categories: Number of categories if features are ids from 0 to num_categories
        - 1; None if features are quantities.
      best_eval_loss: Mean loss over `evaluation` of the probabilities that the labels
        were drawn with; None if unknown.
      class_names: Names of the classes in their order, in reports; None without names.
      augment: Function from features that `train` reads to features of a step with
        shape `input_shape`; None if features are not augmented.
      is_shuffled: False to train on the examples in their own order.
      samples: Examples for checks and summaries of the model; None for held-out ones.
    """

    train: Source
    evaluation: Source
    input_shape: tuple[int, ...]
    num_classes: int
    num_categories: int | None = None
    best_eval_loss: float | None = None
    class_names: Sequence[str] | None = None
    augment: Augment | None = None
    is_shuffled: bool = True
    samples: Source | None = None

    @property
    def sample_source(self) -> Source:
        """Examples for checks and summaries of the model."""
        # A stream of training records keeps no examples.
        held_out = self.evaluation if self.evaluation.num_examples else None
        return self.samples or held_out or self.train


def hold_out(
    features: np.ndarray, labels: np.ndarray, fraction: float, num_classes: int
) -> Data:
    """Splits arrays into training examples and held-out examples.

    Raises:
      UsageError: One of the two parts would be empty.
    """
    chosen = train_eval_split(len(labels), fraction, labels)
    return Data(
        train=ArraySource(features[~chosen], labels[~chosen]),
        evaluation=ArraySource(features[chosen], labels[chosen]),
        input_shape=tuple(features.shape[1:]),
        num_classes=num_classes,
    )


def train_eval_split(
    num_examples: int, fraction: float, classes: np.ndarray | None
) -> np.ndarray:
    """Returns the examples to hold out: bool [num_examples].

    The choice is the same in every run, independent of its seed, so that results of
    different seeds are measured on the same examples. It is stratified if the examples
    have classes: each class keeps its proportion to within one example.

    Raises:
      UsageError: One of the two parts would be empty.
    """
    num_held_out = round(num_examples * fraction)
    if not 0 < num_held_out < num_examples:
        raise UsageError(
            f"--set=data.eval_fraction={fraction} of {num_examples} examples holds out "
            f"{num_held_out}: both parts need at least one; change the fraction "
            "or give more examples."
        )
    # Examples are sorted by class, in random order within a class.
    keys = np.random.default_rng(0).random(num_examples)
    by_class = np.argsort(keys) if classes is None else np.lexsort((keys, classes))
    # The middle of each of `num_held_out` equal parts of the sorted examples.
    middles = (np.arange(num_held_out) + 0.5) * num_examples / num_held_out
    chosen = np.zeros(num_examples, bool)
    chosen[by_class[middles.astype(np.int64)]] = True
    return chosen
