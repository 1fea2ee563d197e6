"""Passes over a program's data, each with as many batches as the first one.

`fit` ends a pass before it validates and calls callbacks, and begins the next one after
them (keras/src/trainers/epoch_iterator.py). A program may draw the numbers of batches,
of their order, of its validation data and in callbacks from one generator, so that no
pass may be read before it begins.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import (
    reads_ahead,
    without_reading_ahead,
)

# Function from the number of earlier passes of an iterator, an int64 scalar, to the
# batches of a pass.
OnePass = Callable[[tf.Tensor], tf.data.Dataset]


class ReadPasses:
    """Passes over data that Python reads, by a reader of Keras."""

    def __init__(
        self,
        opened: Callable[[], Any],
        num_batches: int,
        name: str,
        *,
        is_endless: bool,
        is_kept: bool,
    ):
        """Opens no reader yet.

        Args:
          opened: Function that opens a reader of the data.
          num_batches: Number of batches of a pass.
          name: Name of the data in messages.
          is_endless: True if a pass begins where the one before has ended.
          is_kept: True if later iterators continue with the reader of the first, as a
            second validation does; False if each opens a new one, as training does
            after a rollback.
        """
        self._opened = opened
        self._num_batches = num_batches
        self._name = name
        self._is_endless = is_endless
        self._is_kept = is_kept
        self._reader: Any = None
        self._dataset: Any = None
        self._batches: Iterator[Any] = iter(())

    def read(self, index: int) -> Iterator[Any]:
        """Yields the batches of a pass, after `index` others of the same iterator.

        Raises:
          UsageError: The pass has fewer batches than the first one.
        """
        if index == 0:
            self._begin()
        self._reader.on_epoch_begin()
        if index == 0 or not self._is_endless:
            self._batches = self._following()
        yield from itertools.islice(self._batches, self._num_batches - 1)
        # The data may be shuffled in place now, and the batch be a view of them.
        last = list(map(_copied, itertools.islice(self._batches, 1)))
        self._reader.on_epoch_end()
        if not last:
            raise _shorter_pass(self._name, self._num_batches)
        yield from last

    def _begin(self) -> None:
        if self._reader is None or not self._is_kept:
            self._reader = self._opened()
            batches = self._reader.get_tf_dataset()
            self._dataset = without_reading_ahead(batches)
            if reads_ahead(batches) and not self._is_endless:
                # Keras has one thread read while another converts, also beyond a pass.
                self._dataset = self._dataset.take(self._num_batches).prefetch(
                    tf.data.AUTOTUNE
                )
        # `fit` does so before the first epoch, and `evaluate` before each pass.
        self._reader.on_epoch_end()

    def _following(self) -> Iterator[Any]:
        has_more = True
        while has_more:
            has_more = False
            for batch in self._dataset:
                # Data that give nothing a second time have ended for good.
                has_more = self._is_endless
                yield without_nones(batch)


def passes_of_reader(read: Callable[[int], Iterator[Any]], spec: Any) -> OnePass:
    """Returns the passes over data that Python reads, as `ReadPasses.read` does."""
    return lambda index: tf.data.Dataset.from_generator(
        lambda number: read(int(number)), args=(index,), output_signature=spec
    )


def passes_of_dataset(dataset: tf.data.Dataset, num_batches: int, name: str) -> OnePass:
    """Returns the passes over batches, each with as many as the first one."""

    def refuse() -> NoReturn:
        raise _shorter_pass(name, num_batches)

    if dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY:
        # Read only where a pass ends before the first one did.
        dataset = dataset.concatenate(
            tf.data.Dataset.from_generator(
                refuse, output_signature=dataset.element_spec
            )
        )
    one_pass = dataset.take(num_batches)
    return lambda index: one_pass


def until_end(batches: Iterator[Any], name: str) -> Iterator[Any]:
    """Yields the batches of a generator.

    Raises:
      UsageError: A batch is needed after the last one.
    """
    found = 0
    for batch in batches:
        found += 1
        yield batch
    raise UsageError(
        f"fit has a generator as its {name} that ended after {found} batches, "
        "before the last step: lower epochs or steps_per_epoch (or validation_steps), "
        "or let it yield without an end."
    )


def _shorter_pass(name: str, num_batches: int) -> UsageError:
    return UsageError(
        f"fit has {name} of {num_batches} batches in the first pass and fewer in a "
        "later one, so that its epochs have several lengths: repeat() the data and "
        "give steps_per_epoch (or validation_steps), or let each pass have as many."
    )


def _copied(batch: Any) -> Any:
    return tf.nest.map_structure(
        lambda part: tf.raw_ops.DeepCopy(x=part), batch, expand_composites=True
    )


def without_nones(batch: Any) -> Any:
    """Returns a batch, in which a list is a tuple, without None for labels or weights.

    Keras's readers have an empty `Optional` in place of None.
    """
    if isinstance(batch, list):
        batch = tuple(batch)
    if not isinstance(batch, tuple):
        return batch
    return tuple(
        part
        for part in batch
        if not (part is None or isinstance(part, tf.experimental.Optional))
    )
