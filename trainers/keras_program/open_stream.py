"""Opening of a program's data that are no arrays, as `fit` opens them."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import data_adapter, without_reading_ahead
from trainers.keras_program.stream import ProgramStream, tensors_of


def open_stream(
    x: Any, class_weight: Any, shuffle: Any, steps: int | None, name: str
) -> ProgramStream:
    """Opens data that are no arrays.

    Args:
      x: tf.data.Dataset, generator, keras.utils.PyDataset, torch DataLoader or Grain
        source of batches.
      class_weight: Weights of examples by class, as `fit` takes them; None for none.
      shuffle: True to read the batches of a PyDataset in a random order.
      steps: Number of batches of an epoch; None to find out.
      name: What the data are for, in messages.

    Raises:
      UsageError: The data are of another kind, empty, or of unknown length.
    """
    if isinstance(x, types.GeneratorType):
        return _of_generator(x, steps, name)
    with refusals_named(name):
        adapter = data_adapter(x, class_weight, shuffle)
    dataset = adapter.get_tf_dataset()
    to_look_at = dataset
    if isinstance(x, tf.data.Dataset):
        endless = dataset.repeat()
        look = data_adapter(without_reading_ahead(x), class_weight, shuffle)
        to_look_at = look.get_tf_dataset()
    else:
        endless = tf.data.Dataset.from_generator(
            lambda: _all_epochs(lambda: data_adapter(x, class_weight, shuffle)),
            output_signature=dataset.element_spec,
        )
    full = _full_batch(list(itertools.islice(to_look_at, 2)), name)
    if steps is None:
        steps = adapter.num_batches
    if steps is None:
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise UsageError(
                f"fit has {name} without an end: give steps_per_epoch (or "
                "validation_steps)."
            )
        # The last step of the run has to be known at its start.
        steps = sum(1 for _ in dataset)
    return _stream(endless, full, steps, name)


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
    except (ValueError, TypeError) as error:
        raise UsageError(f"fit refuses its {name}: {error}") from error


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
    return max(batches, key=lambda batch: tensors_of(batch)[0].shape[:1].as_list())


def _all_epochs(make_adapter: Callable[[], Any]) -> Iterator[Any]:
    """Yields the batches of one epoch after the other, without an end."""
    # A new reader for each pipeline: one that is left in the middle of an epoch cannot
    # begin another.
    adapter = make_adapter()
    while True:
        adapter.on_epoch_begin()
        try:
            yield from adapter.get_tf_dataset()
        finally:
            adapter.on_epoch_end()


def _of_generator(x: Iterable[Any], steps: int | None, name: str) -> ProgramStream:
    if steps is None:
        raise UsageError(
            f"fit has a generator as its {name}, whose length is not known: give "
            "steps_per_epoch (or validation_steps), or a keras.utils.PyDataset."
        )
    batches = iter(x)
    first_two = [_tensors(batch) for batch in itertools.islice(batches, 2)]
    full = _full_batch(first_two, name)
    spec = tf.nest.map_structure(
        lambda rows: tf.TensorSpec([None, *rows.shape[1:]], rows.dtype), full
    )
    # It can be read once: by the run that began it.
    endless = tf.data.Dataset.from_generator(
        lambda: itertools.chain(first_two, batches), output_signature=spec
    )
    return _stream(endless, full, steps, name)


def _tensors(batch: Any) -> Any:
    """Returns a batch of a generator, in which a list is a tuple, as tensors."""
    batch = tuple(batch) if isinstance(batch, list) else batch
    return tf.nest.map_structure(tf.convert_to_tensor, batch)


def _stream(
    endless: tf.data.Dataset, full: Any, steps: int, name: str
) -> ProgramStream:
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
        steps_per_epoch=steps,
    )
