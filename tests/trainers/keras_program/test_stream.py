"""Batches of a stream, in their order and in windows of steps."""

import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import orders_kept
from strategies.config import StrategyConfig
from tests import processes
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import read_counter
from trainers.keras_program.data import (
    check_streams,
    data_of_fit,
    validates_on_shuffled,
)
from trainers.keras_program.fit_arguments import arguments_of_call
from trainers.keras_program.streams import windows
from trainers.keras_program.streams.open_stream import open_stream
from trainers.keras_program.streams.stream import StreamBatches


def _batches(data: tf.data.Dataset, first_step: int, last_step: int) -> StreamBatches:
    opened = open_stream(data, None, "training data")
    order = Order(
        num_examples=opened.num_examples,
        global_batch_size=opened.batch_size,
        seed=None,
    )
    return opened.batches(order, first_step, last_step)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("first_step", [0, 5])
def test_windows_have_the_batches_of_the_stream(
    monkeypatch: pytest.MonkeyPatch, first_step: int, num_shards: int
) -> None:
    """23 examples: batches of 8, 8 and 7, in windows of 2 steps and of 1."""
    monkeypatch.setattr(windows, "_MOST_WINDOW_STEPS", 2)
    rows = np.arange(46, dtype="float32").reshape(23, 2)
    data = tf.data.Dataset.from_tensor_slices(({"a": rows}, rows[:, 0])).batch(8)
    batches = _batches(data, first_step, 11)
    before = int(read_counter())
    expected = [list(batches.dataset(shard, num_shards)) for shard in range(num_shards)]
    # A resumed run reads the steps before it, too, and the watchdog sees that.
    assert int(read_counter()) - before == (11 * num_shards if first_step else 0)
    following = batches.windows()
    stop = first_step
    for step in range(first_step, 11):
        if step == stop:
            num_steps, window = next(following)
            stop += num_steps
        for shard in range(num_shards):
            found = batches.at(
                window, tf.constant(step, tf.int64), tf.constant(shard), num_shards
            )
            tf.nest.map_structure(
                np.testing.assert_array_equal, found, expected[shard][step - first_step]
            )
    assert batches.window_steps == 2
    assert stop == 11
    assert next(following, None) is None


def test_no_more_is_read_than_there_are_steps() -> None:
    """Each validation opens the stream anew, so that this matters there."""
    num_read = 0

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal num_read
        for _ in range(3):
            num_read += 1
            yield np.zeros((4, 2)), np.zeros(4)

    data = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec((4, 2)), tf.TensorSpec((4,)))
    )
    opened = _batches(data, 0, 3)
    num_read = 0
    ((num_steps, window),) = opened.windows()
    assert num_read == num_steps == 3
    assert window.features.shape == (3,)


@pytest.mark.parametrize(
    "read", [lambda batches: iter(batches.dataset(0, 2)), StreamBatches.windows]
)
def test_no_more_is_read_ahead_than_memory_has_room_for(
    read: Callable[[StreamBatches], Iterator[Any]],
) -> None:
    """1,000 batches of 256 KiB, of which a window has 64 and a span fewer."""
    num_read = 0

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal num_read
        for _ in range(1000):
            num_read += 1
            yield np.zeros((64, 1024), "float32"), np.zeros(64, "float32")

    signature = tf.TensorSpec((64, 1024)), tf.TensorSpec((64,))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    known = data.apply(tf.data.experimental.assert_cardinality(1000))
    following = read(_batches(known, 0, 1000))
    num_read = 0
    next(following)
    time.sleep(0.2)
    assert 0 < num_read < 250


def test_replicas_of_one_process_read_together() -> None:
    """A generator can be read once: each replica would get other batches."""
    rows = [np.full((4, 2), index) for index in range(3)]
    opened = open_stream(((batch, batch) for batch in rows), 3, "training data")
    order = Order(num_examples=12, global_batch_size=4, seed=None)
    batches = opened.batches(order, 0, 3)
    found = [
        [span.features.numpy() for span in spans]
        for spans in batches.spans_of_shards(range(2), 2)
        if len(spans[0].step)
    ]
    assert [[len(part[0]) for part in parts] for parts in found] == [[2, 2]] * 3
    for parts, batch in zip(found, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts, axis=1)[0], batch)


def test_a_look_at_data_does_not_read_ahead() -> None:
    """A prefetch would fill a cache behind a shuffle, or not: two runs would differ."""
    num_read = 0

    def rows() -> Iterator[np.ndarray]:
        nonlocal num_read
        for row in np.zeros((40, 2)):
            num_read += 1
            yield row

    data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((2,)))
    batches = data.apply(tf.data.experimental.assert_cardinality(40)).batch(4)
    prefetched = batches.cache().prefetch(tf.data.AUTOTUNE).prefetch(8)
    open_stream(prefetched, None, "training data")
    time.sleep(0.2)
    assert num_read == 8


class _Drawn(keras.utils.PyDataset):
    """Drawn batches, and the indices of the batches that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.read.append(index)
        return np.random.normal(size=(4, 2)), np.zeros(4)


def test_a_look_at_batches_draws_no_random_numbers() -> None:
    """Each worker would train on others, as far as its look has read ahead."""
    data = _Drawn()
    np.random.seed(7)
    expected = np.random.get_state()[1]
    np.random.seed(7)
    open_stream(data, None, "training data")
    assert data.read == [0, 1]
    np.testing.assert_array_equal(np.random.get_state()[1], expected)


def test_batches_are_shuffled_without_the_generator_of_the_program() -> None:
    def order(seed_of_program: int) -> list[int]:
        data = _Drawn()
        opened = open_stream(data, None, "training data", seed=3)
        order = Order(num_examples=24, global_batch_size=4, seed=None)
        batches = opened.batches(order, 0, 12).dataset(0, 1)
        random.seed(seed_of_program)
        assert len(list(batches)) == 12
        # After the look, and the first two batches that Keras looks at.
        return data.read[4:16]

    read = order(1)
    assert read == order(2)
    assert sorted(read[:6]) == sorted(read[6:]) == list(range(6))
    assert read[:6] != read[6:]


class _Sums:
    """Rows and their sums, by index as Grain reads them."""

    rows = np.random.default_rng(0).normal(size=(50, 4))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rows[index], self.rows[index].sum(keepdims=True)


def _dataset() -> Any:
    # Threads that read ahead would outlive the test.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    shuffled = grain.MapDataset.source(_Sums()).shuffle(seed=1)
    return shuffled.to_iter_dataset(options).batch(20)


def _loader() -> Any:
    return grain.DataLoader(
        data_source=_Sums(),
        sampler=grain.samplers.IndexSampler(50, shuffle=True, seed=1, num_epochs=1),
        operations=[grain.transforms.Batch(20)],
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )


@pytest.mark.parametrize("made_with", [_dataset, _loader])
def test_batches_of_grain_are_those_of_each_pass(
    made_with: Callable[[], Any],
) -> None:
    opened = open_stream(made_with(), None, "training data")
    assert (opened.batch_size, opened.num_batches) == (20, 3)
    order = Order(num_examples=60, global_batch_size=20, seed=None)
    found = list(opened.batches(order, 0, 6).dataset(0, 1))
    expected = [*made_with(), *made_with()]
    for batch, (rows, sums) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(batch.features, rows)
        np.testing.assert_array_equal(batch.labels, sums)


def _rows(*batch: Any) -> Iterator[Any]:
    yield from [batch] * 4


_ROWS, _CLASSES = np.ones((4, 2), "float32"), np.zeros(4, "int64")
_DATASET = tf.data.Dataset.from_tensor_slices((_ROWS, _CLASSES)).batch(2)


@pytest.mark.parametrize(
    ("x", "given", "words"),
    [
        (_DATASET, {"y": _CLASSES}, "`y` should not be passed"),
        (_rows(_ROWS, _CLASSES), {"class_weight": {0: 2.0}}, "`class_weight`"),
        (_DATASET.map(lambda x, y: (tf.sparse.from_dense(x), y)), {}, "to_dense"),
        (_DATASET.unbatch(), {}, r"call batch\(\)"),
        (tf.data.Dataset.zip(_DATASET, _DATASET.rebatch(1)), {}, "one row of each"),
    ],
)
def test_data_that_are_not_taken_are_named(
    x: Any, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        open_stream(x, 2, "training data", given=given)


def test_all_windows_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would be traced again."""
    monkeypatch.setattr(windows, "_MOST_WINDOW_STEPS", 2)
    data = tf.data.Dataset.from_tensor_slices((np.zeros((23, 2)), np.zeros(23)))
    shapes = [
        [part.shape for part in tf.nest.flatten(window)]
        for _, window in _batches(data.batch(8), 0, 11).windows()
    ]
    assert shapes == [[(), (2,), (2,)]] * 7


def test_windows_take_batches_of_several_shapes_and_types() -> None:
    sizes, widths = (4, 2, 8, 3), (3, 5, 1, 3)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for size, width in zip(sizes, widths, strict=True):
            rows = np.arange(size * width).reshape(size, width)
            yield rows, rows[:, 0] > 2, rows[:, 0].astype(str)

    data = tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec((None, None), tf.int64),
            tf.TensorSpec((None,), tf.bool),
            tf.TensorSpec((None,), tf.string),
        ),
    )
    opened = _batches(data, 0, len(sizes))
    ((_, window),) = opened.windows()
    at = tf.function(lambda step, shard: opened.at(window, step, shard, 2))
    for shard in range(2):
        for step, expected in enumerate(opened.dataset(shard, 2)):
            found = at(tf.constant(step, tf.int64), tf.constant(shard))
            tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
        assert step == len(sizes) - 1


@pytest.mark.parametrize("kind", ["dataset", "generator"])
def test_a_remainder_that_comes_first_is_not_taken_for_a_batch(kind: str) -> None:
    """Keras shuffles the batches of a PyDataset, the last and smallest among them."""
    sizes = (2, 4, 4)
    rows = np.arange(10)
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    if kind == "generator":
        data = ((part, part) for part in parts)
        opened = open_stream(data, len(sizes), "training data")
    else:
        data = tf.data.Dataset.from_generator(
            lambda: ((part, part) for part in parts),
            output_signature=(tf.TensorSpec([None], tf.int64),) * 2,
        )
        opened = open_stream(data, None, "training data")
    assert (opened.batch_size, opened.num_batches) == (4, 3)
    order = Order(num_examples=12, global_batch_size=4, seed=None)
    ((_, window),) = opened.batches(order, 0, 3).windows()
    for part, features in zip(parts, window.features, strict=True):
        assert tf.io.parse_tensor(features, tf.int64).numpy().tolist() == [*part]


# A generator before another fit, with a compilation that nobody needs for streams.
@pytest.mark.exhaustive
def test_a_check_of_compilation_reads_no_batch_of_the_training(
    tmp_path: pathlib.Path,
) -> None:
    """A generator has as many batches as the fit has steps, before a second fit."""
    program = tmp_path / "train.py"
    program.write_text(
        "import keras, numpy as np, tensorflow as tf\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "rows = np.float32(np.arange(24).reshape(12, 2)) / 24\n"
        "batches = ((part, part[:, :1]) for part in np.split(rows, 3))\n"
        "model.fit(batches, steps_per_epoch=3, epochs=1)\n"
        "data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4)\n"
        "print('losses', len(model.fit(data, epochs=2).history['loss']))\n"
    )
    done = processes.run(
        *("--strategy=one_device", "--jit_compile=on"),
        *(f"--script={program}", f"--run_dir={tmp_path / 'run'}"),
    )
    assert done.returncode == 0, done.stderr
    assert "losses 2" in done.stdout


@pytest.mark.parametrize(
    ("loss", "data", "words"),
    [
        (
            *("'mse'", "tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones(4)))"),
            "--backup_workers=1 does not fit data that are a stream",
        ),
        # Its parts of a batch have several sums of weights.
        (
            "keras.losses.MeanSquaredError('mean_with_sample_weight')",
            "np.ones((4, 2)), np.ones(4), sample_weight=np.arange(4)",
            "--backup_workers does not fit this loss",
        ),
    ],
)
def test_backup_workers_are_refused_where_others_cannot_do_without_one(
    tmp_path: pathlib.Path, loss: str, data: str, words: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import keras, numpy as np, tensorflow as tf\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        f"model.compile('sgd', {loss})\n"
        f"model.fit({data})\n"
    )
    done = processes.run(
        *(f"--script={program}", f"--run_dir={tmp_path / 'run'}", "--update=sync"),
        *("--strategy=parameter_server", "--num_workers=2", "--backup_workers=1"),
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize("streamed", ["train", "evaluation"])
def test_asynchronous_towers_do_not_read_streams(streamed: str) -> None:
    rows = np.zeros((8, 2), "float32")
    of_stream = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4)
    x = of_stream if streamed == "train" else rows
    y = None if streamed == "train" else rows
    validation = of_stream if streamed == "evaluation" else (rows, rows)
    model = keras.Sequential([keras.layers.Dense(2)])
    arguments = arguments_of_call(
        type(model).fit, model, (x, y), {"validation_data": validation}
    )
    data = data_of_fit(arguments, 0)
    check_streams(StrategyConfig(strategy="tower"), data)
    with pytest.raises(UsageError, match=r"--update=async .* --update=sync"):
        check_streams(StrategyConfig(strategy="tower", update="async"), data)


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize(
    "made_by", ["map", "interleave", "batch", "options", "parallel_interleave"]
)
def test_orders_of_elements_are_kept(made_by: str, is_inside: bool) -> None:
    """Workers that each read all data need one order; here the first is the slowest."""

    def wait(number: tf.Tensor) -> tf.Tensor:
        time.sleep(0.05 * (number == 0))
        return number

    def slow(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])

    def made() -> tf.data.Dataset:
        data, anyhow = tf.data.Dataset.range(4), (4, False)
        if made_by == "map":
            return data.map(slow, *anyhow)
        if made_by == "batch":
            return data.map(slow).batch(1, False, *anyhow).unbatch()
        if made_by == "options":
            options = tf.data.Options()
            options.deterministic = False
            return data.map(slow, 4).with_options(options)

        def part(number: tf.Tensor) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(number).map(slow)

        if made_by == "parallel_interleave":
            return data.apply(
                tf.data.experimental.parallel_interleave(part, 4, sloppy=True)
            )
        return data.interleave(part, 4, 1, *anyhow)

    with orders_kept():
        one = tf.data.Dataset.range(1).flat_map(lambda _: made())
        found = (one if is_inside else made()).as_numpy_iterator()
    assert list(found) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("is_anew", "parts", "is_shared"),
    [
        (True, lambda data: (data.skip(4), data.take(4)), True),
        (True, lambda data: (data.skip(4).shuffle(5), data.take(4).batch(2)), True),
        (False, lambda data: (data.skip(4), data.take(4)), False),
        (True, lambda data: (data, data.unbatch().shuffle(3).batch(2)), True),
        (True, lambda data: (data, tf.data.Dataset.range(9).shuffle(9)), False),
    ],
)
def test_parts_of_one_shuffle_are_found(
    is_anew: bool, parts: Callable[[Any], tuple[Any, Any]], is_shared: bool
) -> None:
    data = tf.data.Dataset.range(20).shuffle(20, reshuffle_each_iteration=is_anew)
    train, validation = parts(data.batch(2))
    given = {"x": train, "validation_data": validation}
    arguments = arguments_of_call(keras.Model.fit, keras.Sequential(), (), given)
    assert validates_on_shuffled(arguments) == is_shared
