"""Opening of a program's data that are no arrays, as `fit` opens them."""

from __future__ import annotations

import contextlib
import itertools
import random
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import (
    data_adapter,
    first_batches,
    spec_of_batches,
    without_reading_ahead,
)
from strategies.common.text import one_line
from trainers.keras_program.streams.passes import (
    equal_passes,
    passes_of_reader,
    until_end,
    without_nones,
)
from trainers.keras_program.streams.shuffled import Shuffled
from trainers.keras_program.streams.stream import ProgramStream, tensors_of


def open_stream(
    x: Any,
    steps: int | None,
    name: str,
    seed: int | None = None,
    given: Mapping[str, Any] = types.MappingProxyType({}),
    repeats: bool = True,
) -> ProgramStream:
    """Opens data that are no arrays.

    Args:
      x: tf.data.Dataset, generator, keras.utils.PyDataset, torch DataLoader or Grain
        source of batches.
      steps: Number of batches of an epoch, for data without an end; None for none.
      name: What the data are for, in messages.
      seed: Seed of the order of the batches of a PyDataset; None for their own order.
      given: Other arguments of `fit` for Keras's reader, by name.
      repeats: False if an epoch of `steps` ends with data of unknown length.

    Raises:
      UsageError: The data are of another kind, empty, or of unknown length.
    """
    if isinstance(x, types.GeneratorType):
        return _of_generator(x, steps, name, given)
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(x, steps, name, given, repeats)

    # A reader that is left in the middle of an epoch cannot begin another: the look
    # and each pipeline have their own.
    def opened() -> Any:
        in_order = x
        if isinstance(x, keras.utils.PyDataset) and seed is not None:
            in_order = Shuffled(x, seed)
        return data_adapter(in_order, **given)

    with refusals_named(name), _random_numbers_kept():
        adapter = opened()
        first_two = list(map(without_nones, first_batches(adapter)))
        full = _full_batch(first_two, name)
        num_batches = adapter.num_batches
        is_endless = num_batches is None and isinstance(x, keras.utils.PyDataset)
        if is_endless and steps is None:
            raise _endless(name)
        if num_batches is None and not is_endless and not (steps and repeats):
            # The last step of the run has to be known at its start.
            batches = itertools.islice(adapter.get_numpy_iterator(), steps)
            num_batches = sum(1 for _ in batches)
        endless = tf.data.Dataset.from_generator(
            lambda: passes_of_reader(opened(), num_batches, name),
            output_signature=spec_of_batches(first_two),
        )
    return _stream(endless, full, num_batches or steps, name)


def _of_dataset(
    x: tf.data.Dataset,
    steps: int | None,
    name: str,
    given: Mapping[str, Any],
    repeats: bool,
) -> ProgramStream:
    with refusals_named(name):
        adapter = data_adapter(x, **given)
        dataset = adapter.get_tf_dataset()
        look = data_adapter(without_reading_ahead(x), **given).get_tf_dataset()
    # A data set may call Python code, as `from_generator` does.
    with _random_numbers_kept():
        full = _full_batch(list(itertools.islice(look, 2)), name)
        is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if is_endless and steps is None:
            raise _endless(name)
        num_batches = adapter.num_batches
        if num_batches is not None or is_endless or (steps and repeats):
            return _stream(dataset.repeat(), full, num_batches or steps, name)
        num_batches = sum(1 for _ in dataset.take(steps or -1))
    return _stream(equal_passes(dataset, num_batches, name), full, num_batches, name)


def _endless(name: str) -> UsageError:
    return UsageError(
        f"fit has {name} without an end: give steps_per_epoch (or validation_steps)."
    )


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Keeps the state of random numbers that the program's data may draw from.

    The training then reads the batches that `fit` would read.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def refusals_named(name: str) -> Iterator[None]:
    """Turns what Keras refuses into an error of the user's.

    Args:
      name: What the data are for, in the message.

    Raises:
      UsageError: Keras has refused the data.
    """
    try:
        yield
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(f"fit refuses its {name}: {one_line(error)}") from error


def _full_batch(batches: Sequence[Any], name: str) -> Any:
    """Returns the larger of the first two batches.

    Shapes, types and the size of a batch are needed before there is a step. The first
    batch may be the smaller one from the end of the data: Keras shuffles the batches of
    a PyDataset.

    Raises:
      UsageError: There are no batches.
    """
    if not batches:
        raise UsageError(f"fit has no batches in its {name}.")
    return max(batches, key=lambda batch: tuple(tensors_of(batch)[0].shape[:1]))


def _of_generator(
    x: Iterable[Any], steps: int | None, name: str, given: Mapping[str, Any]
) -> ProgramStream:
    if steps is None:
        raise UsageError(
            f"fit has a generator as its {name}, whose length is not known: give "
            "steps_per_epoch (or validation_steps), or a keras.utils.PyDataset."
        )
    batches = map(without_nones, x)
    first_two = list(itertools.islice(batches, 2))
    full = _full_batch(first_two, name)
    with refusals_named(name):
        data_adapter((batch for batch in first_two), **given)
        # It can be read once: each validation goes on where the last one ended.
        following = until_end(itertools.chain(first_two, batches), name)
        endless = tf.data.Dataset.from_generator(
            lambda: following,
            output_signature=spec_of_batches(first_two),
        )
    return _stream(endless, full, steps, name)


def _stream(
    endless: tf.data.Dataset, full: Any, num_batches: int, name: str
) -> ProgramStream:
    if any(
        isinstance(part, tf.SparseTensorSpec)
        for part in tf.nest.flatten(endless.element_spec)
    ):
        raise UsageError(
            f"fit has sparse {name}, of which replicas cannot take rows: make them "
            "dense, as by tf.sparse.to_dense."
        )
    full = tf.nest.map_structure(tf.convert_to_tensor, full)
    sizes = {rows.shape[0] if rows.shape.rank else None for rows in tensors_of(full)}
    if len(sizes) != 1 or None in sizes:
        raise UsageError(
            f"fit has {name} in which the elements are no batches, of shapes "
            f"{', '.join(str(rows.shape) for rows in tensors_of(full))}: call batch()."
        )
    (size,) = sizes
    return ProgramStream(
        endless=endless,
        full_batch=full,
        batch_size=int(size or 0),
        num_batches=num_batches,
    )
