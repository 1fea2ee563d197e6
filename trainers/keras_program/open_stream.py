"""Opening of a program's data that are no arrays, as `fit` opens them."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import data_adapter
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
    try:
        adapter = data_adapter(x, class_weight, shuffle)
    except (ValueError, TypeError) as error:
        raise UsageError(f"fit refuses its {name}: {error}") from error
    dataset = adapter.get_tf_dataset()
    if isinstance(x, tf.data.Dataset):
        endless = dataset.repeat()
    else:
        endless = tf.data.Dataset.from_generator(
            lambda: _all_epochs(lambda: data_adapter(x, class_weight, shuffle)),
            output_signature=dataset.element_spec,
        )
    # Its shapes and types are needed before there is a step.
    first = next(iter(dataset), None)
    if first is None:
        raise UsageError(f"fit has no batches in its {name}.")
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
    return _stream(endless, first, steps, name)


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
    first = next(batches, None)
    if first is None:
        raise UsageError(f"fit has no batches in its {name}.")
    # A list is a tuple here, and an array is features without labels.
    first = tuple(first) if isinstance(first, list) else first
    first = tf.nest.map_structure(tf.convert_to_tensor, first)
    spec = tf.nest.map_structure(
        lambda rows: tf.TensorSpec([None, *rows.shape[1:]], rows.dtype), first
    )
    # It can be read once: by the run that began it.
    endless = tf.data.Dataset.from_generator(
        lambda: itertools.chain([first], batches), output_signature=spec
    )
    return _stream(endless, first, steps, name)


def _stream(
    endless: tf.data.Dataset, first: Any, steps: int, name: str
) -> ProgramStream:
    sizes = {rows.shape[0] if rows.shape.rank else None for rows in tensors_of(first)}
    if len(sizes) != 1 or None in sizes:
        raise UsageError(
            f"fit has {name} in which the elements are no batches, of shapes "
            f"{', '.join(str(rows.shape) for rows in tensors_of(first))}: call batch()."
        )
    (size,) = sizes
    return ProgramStream(
        endless=endless, first=first, batch_size=int(size or 0), steps_per_epoch=steps
    )
