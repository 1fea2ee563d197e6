"""Passes over a program's data, each with as many batches as the first one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf

from strategies.common.errors import UsageError


def equal_passes(
    dataset: tf.data.Dataset, num_batches: int, name: str
) -> tf.data.Dataset:
    """Returns the batches of one pass after the other, without an end.

    As in `fit`, the first pass decides where an epoch ends: what a later one has
    beyond that is left out.

    Args:
      dataset: Batches, of which TensorFlow does not know the number.
      num_batches: Number of batches of the first pass.
      name: What the data are for, in messages.
    """

    def refuse(found: Any) -> NoReturn:
        raise _shorter_pass(name, num_batches, int(found))

    def checked(expected: tf.Tensor, numbered: Any) -> tuple[tf.Tensor, Any]:
        number, batch = numbered
        # After a pass that ends early comes the first batch of the next one.
        number = tf.cond(
            tf.equal(number, expected),
            lambda: number,
            lambda: tf.numpy_function(refuse, [expected], tf.int64),
        )
        return (tf.ensure_shape(number, []) + 1) % num_batches, batch

    numbered = dataset.take(num_batches).enumerate().repeat()
    # Not by `map`, which TensorFlow makes parallel, so that it reads ahead.
    as_it_is = tf.autograph.experimental.do_not_convert(checked)
    return numbered.scan(tf.zeros([], tf.int64), as_it_is)


def passes_of_reader(reader: Any, num_batches: int | None, name: str) -> Iterator[Any]:
    """Yields the batches of one epoch after the other, without an end.

    Args:
      reader: Keras's reader of anything but a tf.data.Dataset.
      num_batches: Number of batches of each epoch; None if `fit` decides where it ends.
      name: What the data are for, in messages.

    Raises:
      UsageError: An epoch has fewer batches.
    """
    batches = reader.get_tf_dataset()
    # `fit` does so before the first epoch too (keras/src/trainers/epoch_iterator.py).
    reader.on_epoch_end()
    while True:
        reader.on_epoch_begin()
        found = 0
        try:
            for batch in batches:
                found += 1
                if num_batches is None or found <= num_batches:
                    yield without_nones(batch)
        finally:
            reader.on_epoch_end()
        if num_batches is not None and found < num_batches:
            raise _shorter_pass(name, num_batches, found)


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


def _shorter_pass(name: str, num_batches: int, found: int) -> UsageError:
    return UsageError(
        f"fit has {name} of {num_batches} batches in the first pass and {found} in a "
        "later one, so that its epochs have several lengths: repeat() the data and "
        "give steps_per_epoch (or validation_steps), or let each pass have as many."
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
