"""A program's PyDataset in an order that every process knows."""

import random
from typing import Any

import keras


class Shuffled(keras.utils.PyDataset):
    """Batches of another PyDataset, in another order in each epoch.

    Keras draws the order from the generator of Python's `random`, from which a program
    draws as well: callbacks, on the chief alone, or threads at any time. Processes that
    each read all batches need one order.
    """

    def __init__(self, batches: keras.utils.PyDataset, seed: int):
        """Draws the order of the first epoch; batches without an end keep theirs."""
        super().__init__(
            workers=batches.workers,
            use_multiprocessing=batches.use_multiprocessing,
            max_queue_size=batches.max_queue_size,
        )
        self._batches = batches
        self._random = random.Random(seed)
        self._order: list[int] = []
        self._draw()

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch; None without an end."""
        return self._batches.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._batches[self._order[index] if self._order else index]

    def on_epoch_begin(self) -> None:
        """See `keras.utils.PyDataset`."""
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """See `keras.utils.PyDataset`; Keras has stopped the workers that read."""
        self._batches.on_epoch_end()
        # The number of batches may be another one.
        self._draw()

    def _draw(self) -> None:
        self._order = list(range(self.num_batches or 0))
        self._random.shuffle(self._order)
