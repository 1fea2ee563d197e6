"""Batches of a program as it reads them: a data set, a generator, a PyDataset."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from strategies.common.types import Batch
from strategies.inner_loop.input import no_steps
from strategies.inner_loop.sharding import take_shard
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import StreamedSource, counted
from trainers.keras_program.streams.passes import OnePass
from trainers.keras_program.streams.windows import (
    Window,
    most_window_steps,
    parts_of,
    tensors_of,
)

# Length of the only pass over data without an end; tf.data counts in int64.
_WITHOUT_END = 2**62
# AutoGraph has nothing to convert here, and takes 0.05 s to find that out.
_unconverted = tf.autograph.experimental.do_not_convert


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAgain:
    """Other data that are read and left out after passes that are read again.

    A program may draw the numbers of both from one generator.

    Attributes:
      data: The other data.
      passes: Indices of the passes, each followed by all of the other data.
    """

    data: tf.data.Dataset
    passes: Sequence[int]

    def after(self, index: tf.Tensor, spec: Any) -> tf.data.Dataset:
        """Returns an empty data set, with elements of `spec`, that reads the data."""
        is_due = tf.reduce_any(tf.equal(index, tf.constant(self.passes, tf.int64)))
        count = tf.where(is_due, tf.constant(-1, tf.int64), 0)

        def filler(*_: Any) -> Any:
            return tf.nest.map_structure(
                lambda s: tf.zeros([size or 0 for size in s.shape], s.dtype), spec
            )

        # `skip` would not read them.
        read = counted(self.data.take(count))
        none = read.filter(_unconverted(lambda *_: False))
        return none.map(_unconverted(filler))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgramStream(StreamedSource):
    """Batches in the program's own order, never all held in memory.

    Attributes:
      one_pass: Function to the batches of a pass over the data: tuples of features,
        labels and perhaps sample weights.
      spec: Specification of a batch.
      is_one_pass: True if the first pass has no end.
      full_batch: Batch of the usual size.
      batch_size: Examples of that batch; others may have fewer.
      num_batches: Number of batches of a pass over the data, or of an epoch.
    """

    one_pass: OnePass
    spec: Any
    is_one_pass: bool = False
    full_batch: Any
    batch_size: int
    num_batches: int
    # What the next `batches` read in between; those after a rollback do not.
    _read_again: list[ReadAgain] = dataclasses.field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def read_again(self, data: tf.data.Dataset, passes: Sequence[int]) -> None:
        """Lets the next `batches` read other data after some passes, as `ReadAgain`."""
        self._read_again.append(ReadAgain(data, passes))

    @property
    def num_examples(self) -> int:
        return self.batch_size * self.num_batches

    def few(self, count: int) -> tuple[Any, Any]:
        parts = parts_of(self.full_batch)
        return tf.nest.map_structure(lambda rows: rows[:count], parts)

    def batches(self, order: Order, first_step: int, last_step: int) -> StreamBatches:
        read_again = self._read_again.pop() if self._read_again else None
        return StreamBatches(
            stream=self,
            order=order,
            first_step=first_step,
            last_step=last_step,
            read_again=read_again,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamBatches:
    """Batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `StreamedBatches`. Where replicas are processes, every process reads all
    batches and takes its rows of each; parameter servers send windows to their workers.
    """

    stream: ProgramStream
    order: Order
    first_step: int
    last_step: int
    read_again: ReadAgain | None = None
    # Not a field: the size of a batch may change.
    largest_span = None
    # By shards and their number: an evaluation that is repeated traces none again.
    _pipelines: dict[Any, tf.data.Dataset] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def data(self) -> ProgramStream:
        return self.stream

    def cached_data(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `windows`")

    @property
    def window_steps(self) -> int:
        return most_window_steps(self.stream.full_batch, self.stream.num_batches)

    def windows(self) -> Iterator[tuple[int, Window]]:
        """Yields the number of steps of each window, and the window."""
        step = self.first_step
        for index in range(self._num_passes()):
            numbered = self._numbered(tf.constant(index, tf.int64))
            batches = (batch for _, batch in numbered.prefetch(tf.data.AUTOTUNE))
            while some := list(itertools.islice(batches, self.window_steps)):
                yield len(some), Window.of(step, some, self.window_steps)
                step += len(some)

    def at(
        self,
        cached_data: Window,
        step: tf.Tensor,
        shard_index: tf.Tensor | int,
        num_shards: int,
    ) -> Batch:
        parts = cached_data.parts(parts_of(self.stream.spec), step)
        return take_shard(self._whole(step, parts), shard_index, num_shards)

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self._pipeline(shard_index, num_shards)

    def spans_of_shards(
        self, shards: Sequence[int], num_shards: int
    ) -> tf.data.Dataset:
        return self._pipeline(tuple(shards), num_shards)

    def _pipeline(
        self, shards: int | tuple[int, ...], num_shards: int
    ) -> tf.data.Dataset:
        def of_shards(step: tf.Tensor, batch: Any) -> Any:
            whole = self._whole(step, parts_of(batch))
            return tf.nest.map_structure(
                lambda shard: _span_of(take_shard(whole, shard, num_shards)), shards
            )

        def spans_of(index: tf.Tensor) -> tf.data.Dataset:
            spans = self._numbered(index).map(_unconverted(of_shards))
            # The next span is read while the present one is computed. After the last
            # one of a pass this is empty, and the next pass is not begun.
            end = tf.data.Dataset.from_tensors(no_steps(spans.element_spec))
            return spans.prefetch(tf.data.AUTOTUNE).concatenate(end)

        key = shards, num_shards
        if key not in self._pipelines:
            passes = tf.data.Dataset.range(self._num_passes())
            options = tf.data.Options()
            # TensorFlow adds a prefetch, which would begin the next pass.
            options.experimental_optimization.inject_prefetch = False
            spans = passes.flat_map(_unconverted(spans_of)).with_options(options)
            self._pipelines[key] = spans
        return self._pipelines[key]

    def _whole(self, step: tf.Tensor, parts: tuple[Any, Any]) -> Batch:
        """Returns the global batch of a step from its features and labels."""
        features, labels = parts
        size = tf.shape(tensors_of(features)[0], tf.int64)[0]
        return Batch(
            step=step,
            replica=tf.zeros([], tf.int64),
            global_size=size,
            num_rows=size,
            # No example of a stream has a number: rows are numbered over all steps.
            indices=step * self.stream.batch_size + tf.range(size),
            features=features,
            labels=labels,
        )

    def _numbered(self, index: tf.Tensor) -> tf.data.Dataset:
        """Returns steps and batches of a pass, by its index, an int64 scalar."""
        begin = self.order.first_step + index * self._pass_length()
        first, last = (
            tf.clip_by_value(step - begin, 0, self._pass_length())
            for step in (self.first_step, self.last_step)
        )
        # A run that is continued reads what comes before, as it may be a generator.
        steps = self.stream.one_pass(index).enumerate(begin).take(last)
        if self.first_step > self.order.first_step:
            steps = counted(steps)
        steps = steps.skip(first)
        if self.read_again is None:
            return steps
        return steps.concatenate(self.read_again.after(index, steps.element_spec))

    def _pass_length(self) -> int:
        return _WITHOUT_END if self.stream.is_one_pass else self.stream.num_batches

    def _num_passes(self) -> int:
        # Division that rounds up: the last pass may not be needed whole.
        return -(-(self.last_step - self.order.first_step) // self._pass_length())


def _span_of(batch: Batch) -> Batch:
    """Returns a batch as a span of one step."""
    return tf.nest.map_structure(lambda values: values[tf.newaxis], batch)
