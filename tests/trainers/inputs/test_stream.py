"""TFRecord files read as a stream: what every share of every step holds."""

import gzip
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import Batch
from tests import processes
from tests.conformance.harness import small_config
from tests.markers import further
from tests.trainers.inputs.record_factory import (
    damage_data,
    number,
    write,
    write_folder,
)
from trainers.config.data import DataConfig
from trainers.fault_tolerance.tensorflow_errors import refusal_of
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import read_counter
from trainers.inputs.tfrecord import dataset
from trainers.inputs.tfrecord.stream import RecordStream

SIZES = (7, 5, 9, 3)
NUM_EXAMPLES = sum(SIZES)
# The last batch of an epoch has 4 examples.
BATCH = 10
EPOCH = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 7, 5, 9 and 3 examples, some of them compressed."""
    return write_folder(tmp_path_factory.mktemp("records") / "train", SIZES)


def open_stream(path: Path | str, sharding: str, **settings: Any) -> RecordStream:
    values = {"eval_data_path": str(path), "num_classes": 2, **settings}
    config = DataConfig(
        dataset="tfrecord", data_path=str(path), sharding=sharding, **values
    )
    stream = dataset.load(config).train
    assert isinstance(stream, RecordStream)
    return stream


def read(
    stream: RecordStream,
    first: int,
    last: int,
    shard_index: int = 0,
    num_shards: int = 1,
    seed: int = 4,
    drop_last_batch: bool = False,
) -> list[Batch]:
    order = Order(
        num_examples=stream.num_examples,
        global_batch_size=BATCH,
        seed=seed,
        drop_last_batch=drop_last_batch or stream.by_file,
    )
    batches = list(stream.batches(order, first, last).dataset(shard_index, num_shards))
    assert [int(batch.step) for batch in batches] == list(range(first, last))
    for batch in batches:
        assert int(batch.replica) == shard_index
        rows = batch.features.shape[0]
        assert rows == len(batch.labels) == len(batch.indices) >= 1
        # An example's number is its index, and five times its feature.
        np.testing.assert_array_equal(
            batch.features, np.repeat(batch.indices[:, np.newaxis], 5, axis=1)
        )
        np.testing.assert_array_equal(batch.labels, batch.indices % 2)
    return batches


def counted(batches: list[Batch]) -> list[list[int]]:
    """Returns the examples of each step that count."""
    return [b.indices.numpy()[: int(b.num_rows)].tolist() for b in batches]


def flat(steps: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(steps))


# By example


def test_an_epoch_shows_every_example_once(folder: Path) -> None:
    stream = open_stream(folder, "example")
    assert stream.num_examples == NUM_EXAMPLES
    batches = read(stream, 0, 2 * EPOCH)
    steps = counted(batches)
    assert [len(step) for step in steps] == [10, 10, 4] * 2
    assert [int(b.global_size) for b in batches] == [10, 10, 4] * 2
    for epoch in (steps[:EPOCH], steps[EPOCH:]):
        assert sorted(flat(epoch)) == list(range(NUM_EXAMPLES))
    assert steps[:EPOCH] != steps[EPOCH:]


def test_the_order_is_that_of_the_seed(folder: Path) -> None:
    stream = open_stream(folder, "example")
    steps = counted(read(stream, 0, EPOCH))
    assert counted(read(stream, 0, EPOCH)) == steps
    # Independently of other draws in the process.
    tf.random.set_seed(12345)
    assert counted(read(open_stream(folder, "example"), 0, EPOCH)) == steps
    assert counted(read(stream, 0, EPOCH, seed=5)) != steps


@pytest.mark.parametrize("num_shards", [further(2), 3])
def test_shares_are_rows_of_the_same_batches(folder: Path, num_shards: int) -> None:
    stream = open_stream(folder, "example")
    whole = counted(read(stream, 0, EPOCH + 1))
    shares = [
        counted(read(stream, 0, EPOCH + 1, shard_index, num_shards))
        for shard_index in range(num_shards)
    ]
    for step, batch in enumerate(whole):
        assert flat([shard_index[step] for shard_index in shares]) == batch


def test_a_share_without_examples_has_one_row_that_does_not_count(
    tmp_path: Path,
) -> None:
    stream = open_stream(write_folder(tmp_path / "few", (11,)), "example")
    lonely = read(stream, 1, 2, shard_index=1, num_shards=2)[0]
    assert (int(lonely.num_rows), lonely.features.shape[0]) == (0, 1)
    assert int(lonely.global_size) == 1


def test_without_the_last_batch_all_are_full(folder: Path) -> None:
    steps = counted(read(open_stream(folder, "example"), 0, 4, drop_last_batch=True))
    assert [len(step) for step in steps] == [10] * 4
    for epoch in (steps[:2], steps[2:]):
        assert len(set(flat(epoch))) == 20


# The steps that are read together below start within an epoch as well.
@pytest.mark.parametrize("sharding", [further("example"), "file"])
def test_a_stream_can_start_at_any_step(folder: Path, sharding: str) -> None:
    stream = open_stream(folder, sharding)
    whole = counted(read(stream, 0, 9, shard_index=1, num_shards=2))
    # Within an epoch of three steps, at its end, and within a later one.
    for first in (1, 3, 7):
        found = counted(read(stream, first, first + 2, shard_index=1, num_shards=2))
        assert found == whole[first : first + 2], first


def test_a_buffer_of_one_leaves_records_in_the_order_of_their_files(
    tmp_path: Path,
) -> None:
    stream = open_stream(
        write_folder(tmp_path / "one", (24,)), "example", shuffle_buffer_examples=1
    )
    assert flat(counted(read(stream, 0, EPOCH))) == list(range(24))


def test_by_default_a_buffer_has_128_mib_at_most(tmp_path: Path) -> None:
    """Records of 3 MB compress to little, and count as decompressed."""
    sample = tf.train.Example()
    sample.features.feature["image"].bytes_list.value.append(bytes(3_000_000))
    for part in range(2):
        write(tmp_path / f"{part}.tfrecord.gz", [sample.SerializeToString()] * 2)
    evaluation = write_folder(tmp_path / "evaluation", (4,))
    settings = {"eval_data_path": str(evaluation), "num_classes": 2}
    stream = open_stream(tmp_path, "example", **settings)
    assert stream.shuffle_buffer_examples == 2**27 // 3_000_000
    assert open_stream(evaluation, "example").shuffle_buffer_examples == 10_000


def test_without_a_seed_files_are_read_by_turns_in_their_order(folder: Path) -> None:
    """All files have fewer records than a turn."""
    stream = open_stream(folder, "example")
    order = Order(num_examples=NUM_EXAMPLES, global_batch_size=BATCH, seed=None)
    steps = counted(list(stream.batches(order, 0, EPOCH).dataset(0, 1)))
    assert flat(steps) == list(range(NUM_EXAMPLES))


def test_no_example_is_more_likely_to_come_first(tmp_path: Path) -> None:
    """200 epochs of 6 examples in two files, against a chance of 1e-6."""
    stream = open_stream(write_folder(tmp_path / "six", (2, 4)), "example")
    firsts = [step[0] for step in counted(read(stream, 0, 200))]
    counts = np.bincount(firsts, minlength=6)
    assert scipy.stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("first", [*map(further, (0, 31, 40, 50)), 33])
def test_steps_that_are_read_together_are_within_an_epoch_and_of_one_size(
    tmp_path: Path, first: int
) -> None:
    """81 examples in batches of two are spans of 32 steps, of 8, and of one example."""
    stream = open_stream(write_folder(tmp_path / "many", (50, 31)), "example")
    order = Order(num_examples=81, global_batch_size=2, seed=4)
    whole = counted(list(stream.batches(order, 0, 82).dataset(0, 1)))
    assert [len(step) for step in whole] == ([2] * 40 + [1]) * 2
    for epoch in (whole[:41], whole[41:]):
        assert sorted(flat(epoch)) == list(range(81))
    batches = stream.batches(order, first, 82)
    assert counted(list(batches.dataset(0, 1))) == whole[first:]
    ends = [end for end in (32, 40, 41, 73, 81, 82) if end > first]
    begins = [first, *ends[:-1]]
    for shard_index in range(2):
        spans = list(batches.spans(shard_index, 2))
        assert [len(span.step) for span in spans] == np.subtract(ends, begins).tolist()
        assert [int(span.step[0]) for span in spans] == begins


# By file


def test_steps_of_own_files_are_read_together_too(tmp_path: Path) -> None:
    """77 records of the second file come before the first step: 2 x 32 and 13."""
    stream = open_stream(write_folder(tmp_path / "own", (5, 90)), "file")
    order = Order(num_examples=95, global_batch_size=2, seed=4, drop_last_batch=True)
    batches = stream.batches(order, 77, 114)
    before = int(read_counter())
    assert [len(span.step) for span in batches.spans(1, 2)] == [32, 5]
    # The watchdog sees the records that are read again, too.
    assert int(read_counter()) - before == 4
    whole = counted(list(stream.batches(order, 0, 114).dataset(1, 2)))
    assert counted(list(batches.dataset(1, 2))) == whole[77:]


def test_shares_have_files_of_their_own_and_repeat_them(folder: Path) -> None:
    """Files 0 and 2 for the one, 1 and 3 for the other: 16 and 8 examples."""
    stream = open_stream(folder, "file")
    own = ({*range(7), *range(12, 21)}, {*range(7, 12), *range(21, 24)})
    for shard_index, examples in enumerate(own):
        batches = read(stream, 0, 16, shard_index, 2)
        assert {int(b.num_rows) for b in batches} == {5}
        assert {int(b.global_size) for b in batches} == {10}
        seen = flat(counted(batches))
        passes = [
            seen[start : start + len(examples)]
            for start in range(0, len(seen), len(examples))
        ]
        assert len(passes) == 80 // len(examples)
        for one_pass in passes:
            assert sorted(one_pass) == sorted(examples)
        assert passes[0] != passes[1]


def test_a_batch_that_does_not_divide_is_full_all_the_same(folder: Path) -> None:
    stream = open_stream(folder, "file")
    sizes = [
        {int(b.num_rows) for b in read(stream, 0, 4, shard_index, 3)}
        for shard_index in range(3)
    ]
    assert sizes == [{4}, {3}, {3}]


# Faulty records


def failure(stream: RecordStream, batch: int = BATCH) -> str:
    """Returns the error of a stream that is read to the end of an epoch."""
    order = Order(num_examples=stream.num_examples, global_batch_size=batch, seed=0)
    batches = stream.batches(order, 0, order.steps_per_epoch).dataset(0, 1)
    with pytest.raises(tf.errors.OpError) as raised:
        list(batches)
    config = small_config(
        dataset="tfrecord",
        data_path=",".join(str(file.path) for file in stream.files),
        eval_data_path="other",
        num_classes=stream.num_classes,
        sharding="example",
    )
    refusal = refusal_of(raised.value, config)
    assert refusal is not None
    message = str(refusal)
    assert message.isprintable()
    assert message.endswith(".")
    return message


def copy_of(folder: Path, path: Path) -> Path:
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_damaged_data_is_an_error_with_file_and_byte(
    folder: Path, tmp_path: Path
) -> None:
    copy = copy_of(folder, tmp_path / "copy")
    offset = damage_data(copy / "part-2.tfrecord", record=4)
    stream = open_stream(copy, "example", eval_data_path=str(folder))
    assert failure(stream).startswith(
        f"{copy / 'part-2.tfrecord'}: record 4 at byte {offset}: its data is damaged"
    )


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (number(3, 2), "'label' is 2: labels number the classes from 0 to at most 1"),
        (number(3, -1), "'label' is -1: labels number the classes"),
        (b"no example", "it is not a tf.train.Example"),
        (b"", "it has no feature 'sample'"),
    ],
    ids=["class 2", "class -1", "text", "empty"],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_record_that_does_not_match_is_an_error_with_file_and_byte(
    tmp_path: Path, bad: bytes, problem: str, suffix: str
) -> None:
    good = write_folder(tmp_path / "good", (4,))
    path = tmp_path / f"bad.tfrecord{suffix}"
    write(path, [number(1), number(2), bad, number(4)])
    stream = open_stream(f"{good},{path}", "example", eval_data_path=str(good))
    of_stream = " of the uncompressed stream" if suffix else ""
    place = f"{path}: record 2 at byte {2 * (16 + len(number(1)))}{of_stream}: "
    assert failure(stream).startswith(place + problem)


def _order(stream: RecordStream) -> Order:
    return Order(
        num_examples=stream.num_examples,
        global_batch_size=stream.num_examples,
        seed=0,
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lengths_are_checked_before_anything_is_trained_on(
    folder: Path, tmp_path: Path, suffix: str
) -> None:
    """The length of record 1 becomes another, with a checksum that is not its own."""
    path = write(tmp_path / "a.tfrecord", [number(1), number(2)])
    content = bytearray(path.read_bytes())
    start = 16 + len(number(1))
    content[start + 3] ^= 1
    path = write_raw(tmp_path / f"b.tfrecord{suffix}", bytes(content))
    with pytest.raises(UsageError, match=f"record 1 at byte {start}.*length is dam"):
        open_stream(f"{folder},{path}", "example", eval_data_path=str(folder))


def write_raw(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_damaged_compression_is_an_error_with_file_and_byte(
    folder: Path, tmp_path: Path
) -> None:
    copy = copy_of(folder, tmp_path / "copy")
    stream = open_stream(copy, "example", eval_data_path=str(folder))
    path = copy / "part-1.tfrecord.gz"
    times = path.stat()
    content = bytearray(path.read_bytes())
    # The checksum of the decompressed data.
    content[-6] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert failure(stream).startswith(
        f"{path}: record 5 at byte {5 * (16 + len(number(7)))} of the uncompressed "
        "stream: the compressed data is damaged"
    )


def test_a_file_that_changes_while_it_is_trained_on_is_named(
    folder: Path, tmp_path: Path
) -> None:
    copy = copy_of(folder, tmp_path / "copy")
    stream = open_stream(copy, "example")
    write(copy / "part-0.tfrecord", [number(value, value % 2) for value in range(6)])
    message = failure(stream)
    assert message.startswith(f"{copy / 'part-0.tfrecord'}: has changed since")
    (copy / "part-0.tfrecord").unlink()
    message = failure(stream)
    assert message.startswith(f"{copy / 'part-0.tfrecord'}: cannot be read any more")


def test_a_stream_is_not_read_by_index(folder: Path) -> None:
    stream = open_stream(folder, "example")
    batches = stream.batches(_order(stream), 0, 1)
    for read_by_index in (
        stream.tensors,
        batches.cached_data,
        lambda: stream.read(None, tf.constant([0], tf.int64)),
        lambda: batches.at(None, 0, 0, 1),
    ):
        with pytest.raises(TypeError, match="a stream"):
            read_by_index()


@pytest.mark.slow
def test_a_run_that_comes_to_a_damaged_record_ends_with_its_place(
    folder: Path, tmp_path: Path
) -> None:
    """It has trained until then, and says that it did not get to its end."""
    copy = copy_of(folder, tmp_path / "copy")
    offset = damage_data(copy / "part-2.tfrecord", record=8)
    done = processes.run(
        "--dataset=tfrecord",
        f"--data_path={copy}",
        f"--eval_data_path={folder}",
        "--sharding=example",
        "--num_classes=2",
        "--model=mlp",
        "--global_batch_size=4",
        "--run_dir=run",
        folder=tmp_path,
    )
    assert done.returncode == 2
    (line,) = (text for text in done.stderr.splitlines() if "error" in text)
    place = f"{copy / 'part-2.tfrecord'}: record 8 at byte {offset}"
    assert line.startswith(f"error: {place}: its data is damaged")
    assert processes.result_of(tmp_path / "run")["status"] == "failed"
