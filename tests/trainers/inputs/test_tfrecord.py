import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.common.errors import UsageError
from trainers.config.data import DataConfig
from trainers.inputs.sources import Data, Source
from trainers.inputs.tfrecord.dataset import load
from trainers.inputs.tfrecord.schema import Feature, RecordSchema, parse_schema


def example(**values: list[int] | list[float] | list[bytes]) -> bytes:
    """Returns a serialized Example; a feature has the type of its first value."""
    message = tf.train.Example()
    for name, of_name in values.items():
        feature = message.features.feature[name]
        if isinstance(of_name[0], int):
            feature.int64_list.value.extend(of_name)
        elif isinstance(of_name[0], float):
            feature.float_list.value.extend(of_name)
        else:
            feature.bytes_list.value.extend(of_name)
    return message.SerializeToString()


def number(value: int, label: int = 0) -> bytes:
    return example(sample=[value] * 5, label=[label])


def write(path: Path, payloads: list[bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def config(path: Path | str, **settings: Any) -> DataConfig:
    return DataConfig(dataset="tfrecord", data_path=str(path), **settings)


def everything(source: Source) -> tuple[np.ndarray, np.ndarray]:
    features, labels = source.read(
        source.tensors(), tf.range(source.num_examples, dtype=tf.int64)
    )
    return features.numpy(), labels.numpy()


def refusal(data_config: DataConfig) -> str:
    with pytest.raises(UsageError) as raised:
        load(data_config)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def first_values(data: Data) -> list[float]:
    return everything(data.train)[0][:, 0].tolist()


def test_int64_samples_become_float32_features(tmp_path):
    train = write(tmp_path / "train.tfrecord", [number(3, 1), number(-7, 0)])
    train_eval_split = write(tmp_path / "eval.tfrecord", [number(9, 4)])
    data = load(config(train, eval_data_path=str(train_eval_split)))
    features, labels = everything(data.train)
    assert features.dtype == np.float32
    assert features.tolist() == [[3.0] * 5, [-7.0] * 5]
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0]
    assert everything(data.evaluation)[0].tolist() == [[9.0] * 5]
    assert data.input_shape == (5,)
    # The largest label is in the evaluation part.
    assert data.num_classes == 5


def test_a_shaped_float32_input_keeps_its_layout(tmp_path):
    image = [float(value) for value in range(12)]
    payloads = [example(image=image, label=[label % 2]) for label in range(10)]
    path = write(tmp_path / "a.tfrecord", payloads)
    data = load(config(path, record_schema="image:float32:2x3x2, label:int64"))
    assert data.input_shape == (2, 3, 2)
    features, _ = everything(data.train)
    np.testing.assert_array_equal(features[0], np.reshape(image, (2, 3, 2)))


def test_without_an_evaluation_file_a_fraction_is_held_out(tmp_path):
    payloads = [number(value, value % 2) for value in range(20)]
    data = load(config(write(tmp_path / "a.tfrecord", payloads), eval_fraction=0.3))
    train, train_eval_split = everything(data.train)[0], everything(data.evaluation)[0]
    assert (len(train), len(train_eval_split)) == (14, 6)
    assert sorted([*train[:, 0], *train_eval_split[:, 0]]) == list(range(20))


def test_there_are_at_least_two_classes(tmp_path):
    path = write(tmp_path / "a.tfrecord", [number(1), number(2), number(3)])
    assert load(config(path, eval_data_path=str(path))).num_classes == 2


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    write(tmp_path / "b.tfrecord", [number(2)])
    write(tmp_path / "a.tfrecord", [number(0), number(1)])
    write(tmp_path / "c.other", [number(99)])
    (tmp_path / "d.tfrecord").mkdir()
    train_eval_split = str(tmp_path / "a.tfrecord")
    data = load(config(tmp_path, eval_data_path=train_eval_split))
    assert first_values(data) == [0, 1, 2]


def test_files_of_several_paths_are_read_in_their_order(tmp_path):
    for name, value in (("b", 1), ("a", 2), ("c", 3)):
        write(tmp_path / f"{name}.tfrecord", [number(value)])
    first, others = tmp_path / "b.tfrecord", tmp_path / "[ac].tfrecord"
    data = load(config(f"{first},{others}", eval_data_path=str(first)))
    assert first_values(data) == [1, 2, 3]


def test_a_compressed_file_is_read_like_any_other(tmp_path):
    path = write(tmp_path / "a.tfrecord", [number(value) for value in range(2500)])
    compressed = tmp_path / "b.tfrecord.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    data = load(config(compressed, eval_data_path=str(path)))
    assert first_values(data) == list(range(2500))


def test_more_examples_than_are_parsed_at_a_time_keep_their_order(tmp_path):
    path = write(tmp_path / "a.tfrecord", [number(value) for value in range(2500)])
    data = load(config(path, eval_data_path=str(path)))
    assert first_values(data) == list(range(2500))


IMAGE = "image:float32:2x2,label:int64"


@pytest.mark.parametrize(
    ("bad", "schema", "expected"),
    [
        (b"\xff\xfe\xfd", None, "it is not a tf.train.Example"),
        (b"plain text, not an Example", None, "it is not a tf.train.Example"),
        (b"", None, "it has no feature 'sample'; it has none"),
        (example(x=[1]), None, "it has no feature 'sample'; it has 'x'"),
        (example(sample=[1] * 5), None, "no feature 'label'; it has 'sample'"),
        (example(sample=[1] * 4, label=[0]), None, "'sample' has 4 values, not 5"),
        (example(sample=[1] * 5, label=[0, 1]), None, "'label' has 2 values, not 1"),
        (example(sample=[1.0] * 5, label=[0]), None, "not int64 but float32"),
        (example(sample=[b"1"] * 5, label=[0]), None, "not int64 but bytes"),
        (example(sample=[1] * 5, label=[0.0]), None, "not int64 but float32"),
        (number(1, -1), None, "'label' is -1: labels number the classes"),
        (number(1, 2**62), None, f"'label' is {2**62}: labels number the classes"),
        (example(image=[1] * 4, label=[0]), IMAGE, "not float32 but int64"),
        (example(image=[1.0] * 9, label=[0]), IMAGE, "has 9 values, not 4"),
        (example(image=[float("nan")] * 4, label=[0]), IMAGE, "not a finite number"),
    ],
    # Serialized bytes as names would differ between processes, and pytest-xdist
    # refuses to run tests whose names differ.
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_record_that_does_not_match_is_named(tmp_path, bad, schema, expected):
    good = number(1) if schema is None else example(image=[1.0] * 4, label=[0])
    payloads = [good] * 1500
    payloads[1234] = bad
    path = write(tmp_path / "a.tfrecord", payloads)
    settings = {} if schema is None else {"record_schema": schema}
    message = refusal(config(path, **settings))
    place = 1234 * (16 + len(good))
    assert message.startswith(f"{path}: record 1234 at byte {place}: ")
    assert expected in message


@given(payload=st.binary(max_size=60))
@settings(deadline=None, max_examples=100)
def test_any_bytes_are_an_example_or_are_refused(tmp_path_factory, payload):
    path = tmp_path_factory.getbasetemp() / "any.tfrecord"
    message = refusal(config(write(path, [number(1), payload])))
    assert message.startswith(f"{path}: ")


@given(place=st.integers(0), value=st.integers(0, 255))
@settings(deadline=None, max_examples=100)
def test_a_changed_byte_never_ends_in_another_error(tmp_path_factory, place, value):
    changed = bytearray(number(7, 1))
    changed[place % len(changed)] = value
    path = tmp_path_factory.getbasetemp() / "changed.tfrecord"
    write(path, [number(1), bytes(changed)])
    num_examples = None
    with contextlib.suppress(UsageError):
        num_examples = load(config(path, eval_data_path=str(path))).train.num_examples
    assert num_examples in (None, 2), "it was neither refused nor read whole"


def test_a_shape_no_record_can_fill_is_refused_without_allocating_it(tmp_path):
    path = write(tmp_path / "a.tfrecord", [number(1)])
    schema = "sample:int64:999999999x999999999x999999999,label:int64"
    message = refusal(config(path, record_schema=schema))
    assert f"'sample' has 5 values, not {999999999**3}" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'' is not name:type or name:type:shape"),
        ("sample", "'sample' is not name:type or name:type:shape"),
        ("sample:int64:5", "it names 1 features, not two"),
        ("a:int64,b:int64,label:int64", "it names 3 features, not two"),
        ("sample:int64:5,", "'' is not name:type or name:type:shape"),
        (":int64:5,label:int64", "':int64:5' is not name:type"),
        ("sample:int64:5:6,label:int64", "'sample:int64:5:6' is not name:type"),
        ("sample:int32:5,label:int64", "the type 'int32' is unknown"),
        ("sample:int64:0,label:int64", "the shape '0' is not like 5 or 28x28x1"),
        ("sample:int64:-5,label:int64", "the shape '-5' is not like"),
        ("sample:int64:5x,label:int64", "the shape '5x' is not like"),
        ("sample:int64:,label:int64", "the shape '' is not like"),
        ("sample:int64:99999999999,label:int64", "the shape '99999999999' is not"),
        ("sample:int64:5,label:float32", "the label 'label:float32' is not a single"),
        ("sample:int64:5,label:int64:2", "the label 'label:int64:2' is not a single"),
        ("label:int64,sample:int64:5", "the label 'sample:int64:5' is not a single"),
        ("label:int64,label:int64", "both features are named 'label'"),
    ],
)
def test_a_schema_that_is_not_accepted_says_what_is(tmp_path, text, expected):
    path = write(tmp_path / "a.tfrecord", [number(1)])
    message = refusal(config(path, record_schema=text))
    assert message.startswith(f"--record_schema={text!r} is not accepted: {expected}")
    assert message.endswith("such as image:float32:28x28x1,label:int64.")


@pytest.mark.parametrize(
    "text", ["sample:int64:5,label:int64", "x:float32,y:int64", IMAGE]
)
def test_a_schema_is_written_as_it_is_read(text):
    assert str(parse_schema(text)) == text


def test_a_schema_is_what_it_says():
    assert parse_schema("image:float32:28x28x1, label:int64") == RecordSchema(
        input=Feature(name="image", dtype="float32", shape=(28, 28, 1)),
        label=Feature(name="label", dtype="int64"),
    )


def test_a_scalar_input_has_no_shape(tmp_path):
    payloads = [example(x=[float(value)], y=[0]) for value in range(3)]
    path = write(tmp_path / "a.tfrecord", payloads)
    schema = "x:float32,y:int64"
    data = load(config(path, eval_data_path=str(path), record_schema=schema))
    assert data.input_shape == ()
    assert everything(data.train)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.tfrecord", "does not exist"),
        ("", "is a folder without *.tfrecord files"),
        ("n" * 300, "cannot be read (File name too long)"),
    ],
    ids=["missing", "folder", "name"],
)
def test_a_path_without_files_is_refused(tmp_path, name, problem):
    path = tmp_path / name
    advice = "give TFRecord files, folders of *.tfrecord and *.tfrecord.gz files, or"
    assert refusal(config(path)).startswith(f"--data_path={path} {problem}: {advice}")


def test_a_device_is_not_read(tmp_path):
    message = refusal(config("/dev/zero"))
    assert message.startswith("--data_path=/dev/zero is neither a file nor a folder")


def test_a_missing_evaluation_path_is_named_by_its_flag(tmp_path):
    path = write(tmp_path / "a.tfrecord", [number(1)])
    missing = str(tmp_path / "missing")
    message = refusal(config(path, eval_data_path=missing))
    assert message.startswith(f"--eval_data_path={missing} does not exist")


def test_an_empty_file_in_a_folder_is_named(tmp_path):
    write(tmp_path / "a.tfrecord", [number(1)])
    empty = tmp_path / "b.tfrecord"
    empty.touch()
    assert refusal(config(tmp_path)).startswith(f"{empty}: byte 0: the file is empty")
