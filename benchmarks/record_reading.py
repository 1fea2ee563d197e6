"""How fast TFRecord files are counted, read and streamed, next to TensorFlow's reader.

  python -m benchmarks.record_reading

Writes two sets of eight files into a temporary folder, small records and large ones,
plain and compressed, and prints a table of the best of three passes over each.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from trainers.inputs.shuffling import Order
from trainers.inputs.tfrecord.reader import count_records, read_pieces
from trainers.inputs.tfrecord.schema import RecordSchema, parse_schema
from trainers.inputs.tfrecord.stream import open_stream

NUM_FILES = 8
BATCH = 256
PASSES = 3
SETS = {
    "small": ("sample:int64:5,label:int64", 25_000),
    "large": ("image:float32:96x96x3,label:int64", 60),
}


def main() -> None:
    """Prints one row for each set of files."""
    print("| records | bytes each | counted | read | streamed | by TensorFlow |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, per_file) in SETS.items():
            schema = parse_schema(text)
            files = list(write(pathlib.Path(folder) / name, schema, per_file))
            print(row(name, files, schema))
            packed = [compress(file) for file in files]
            print(row(f"{name}, gzip", packed, schema))


def write(
    prefix: pathlib.Path, schema: RecordSchema, per_file: int
) -> Iterator[pathlib.Path]:
    """Files of random examples."""
    random = np.random.default_rng(0)
    count = int(np.prod(schema.input.shape))
    for number in range(NUM_FILES):
        path = prefix.with_name(f"{prefix.name}-{number}.tfrecord")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(per_file):
                example = tf.train.Example()
                feature = example.features.feature[schema.input.name]
                if schema.input.dtype == "int64":
                    feature.int64_list.value.extend(random.integers(0, 10, count))
                else:
                    feature.float_list.value.extend(random.random(count, np.float32))
                example.features.feature["label"].int64_list.value.append(1)
                writer.write(example.SerializeToString())
        yield path


def compress(path: pathlib.Path) -> pathlib.Path:
    """A copy of a file, compressed."""
    packed = path.with_suffix(".tfrecord.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
    return packed


def row(name: str, files: Sequence[pathlib.Path], schema: RecordSchema) -> str:
    """Examples in a second, one file after the other where it is not a stream."""
    examples = sum(map(count_records, files))
    size = sum(len(data) for piece in read_pieces(files[0]) for data in piece.payloads)
    figures = [
        speed(examples, lambda: [count_records(file) for file in files]),
        speed(examples, lambda: [list(read_pieces(file)) for file in files]),
        speed(examples, lambda: exhaust(streamed(files, schema))),
        speed(examples, lambda: exhaust(by_tensorflow(files, schema))),
    ]
    cells = [name, f"{size * NUM_FILES / examples:,.0f}"]
    cells += [f"{figure:,.0f}/s" for figure in figures]
    return f"| {' | '.join(cells)} |"


def speed(examples: int, run: Callable[[], object]) -> float:
    """Examples in a second of the fastest of a few passes."""
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return examples / min(seconds)


def exhaust(dataset: tf.data.Dataset) -> int:
    """Takes everything out of it."""
    return sum(1 for _ in dataset)


def streamed(files: Sequence[pathlib.Path], schema: RecordSchema) -> tf.data.Dataset:
    """One epoch as training reads it."""
    stream = open_stream(
        files, schema, num_classes=2, by_file=False, shuffle_buffer_examples=10_000
    )
    order = Order(num_examples=stream.num_examples, global_batch_size=BATCH, seed=0)
    return stream.batches(order, 0, order.steps_per_epoch).dataset(0, 1)


def by_tensorflow(
    files: Sequence[pathlib.Path], schema: RecordSchema
) -> tf.data.Dataset:
    """The same with nothing around TensorFlow's reader and parser."""
    kind = "GZIP" if files[0].suffix == ".gz" else ""
    features = {
        f.name: tf.io.FixedLenFeature(f.shape, f.dtype)
        for f in (schema.input, schema.label)
    }
    names = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    return (
        names.interleave(
            lambda file: tf.data.TFRecordDataset(file, compression_type=kind),
            cycle_length=NUM_FILES,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .shuffle(10_000, seed=0)
        .batch(BATCH)
        .map(
            lambda batch: tf.io.parse_example(batch, features),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
    )


if __name__ == "__main__":
    main()
