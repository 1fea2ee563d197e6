import gzip
import hashlib
import pathlib
import tarfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests import processes
from tests.trainers.inputs.cifar10_factory import (
    IMAGES_PER_FILE,
    images_of,
    training_images,
    write_archive,
    write_folder,
)
from trainers import inputs
from trainers.config.data import DataConfig
from trainers.inputs import cifar10_files
from trainers.inputs.cifar10 import load
from trainers.inputs.cifar10_files import read_images
from trainers.inputs.sources import Data, Source


def config(path: pathlib.Path, **settings: Any) -> DataConfig:
    return DataConfig(dataset="cifar10", data_path=str(path), **settings)


def refusal(path: pathlib.Path) -> str:
    with pytest.raises(UsageError) as raised:
        load(config(path))
    message = str(raised.value)
    assert message.isprintable()
    assert str(path) in message
    return message


def everything(source: Source) -> tuple[np.ndarray, np.ndarray]:
    features, labels = source.read(
        source.tensors(), tf.range(source.num_examples, dtype=tf.int64)
    )
    return features.numpy(), labels.numpy()


def cropped_in_the_middle(pixels: np.ndarray) -> np.ndarray:
    """Returns the images as the functions of the tutorial crop and scale them."""
    images = tf.image.resize_with_crop_or_pad(pixels.astype(np.float32), 24, 24)
    return np.stack([tf.image.per_image_standardization(i) for i in images])


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_the_published_forms_are_read(
    tmp_path: pathlib.Path, write: Callable[..., pathlib.Path]
) -> None:
    train, test = read_images(write(tmp_path / "data"))
    for found, expected in (
        (train, training_images()),
        (test, images_of("test_batch")),
    ):
        pixels, labels = found
        np.testing.assert_array_equal(pixels, expected[0])
        np.testing.assert_array_equal(labels, expected[1])
        assert (pixels.dtype, labels.dtype) == (np.uint8, np.int64)


def test_evaluation_sees_the_middle_of_each_image(tmp_path: pathlib.Path) -> None:
    path = write_folder(tmp_path / "data")
    data = load(config(path))
    assert (data.input_shape, data.num_classes) == ((24, 24, 3), 10)
    features, labels = everything(data.evaluation)
    pixels, expected_labels = images_of("test_batch")
    np.testing.assert_array_equal(labels, expected_labels)
    # Both round the same numbers in another order.
    np.testing.assert_allclose(features, cropped_in_the_middle(pixels), atol=1e-5)


def test_training_images_are_stored_whole_and_distorted_by_step(
    tmp_path: pathlib.Path,
) -> None:
    data = load(config(write_folder(tmp_path / "data")))
    stored, _ = everything(data.train)
    assert stored.shape == (5 * IMAGES_PER_FILE, 32, 32, 3)
    assert stored.dtype == np.uint8
    assert data.augment is not None
    first, again, later = (
        data.augment(stored[:2], tf.constant([0, 1], tf.int64), tf.constant(step), 0)
        for step in (7, 7, 8)
    )
    assert first.shape == (2, 24, 24, 3)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - later).max() > 0.1


def test_without_augmentation_training_sees_the_middle(tmp_path: pathlib.Path) -> None:
    path = write_folder(tmp_path / "data")
    data = load(config(path, augmentation=False))
    assert data.augment is None
    features, _ = everything(data.train)
    np.testing.assert_allclose(
        features, cropped_in_the_middle(training_images()[0]), atol=1e-5
    )


# Damaged files


def change(name: str, content: bytes) -> Callable[[pathlib.Path], Any]:
    """Returns a function that writes the folder with another content of one file."""

    def prepare(path: pathlib.Path) -> None:
        write_folder(path)
        (path / name).write_bytes(content)

    return prepare


def remove(path: pathlib.Path) -> None:
    write_folder(path)
    (path / "data_batch_3.bin").unlink()


def cut(path: pathlib.Path) -> None:
    content = write_archive(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: pathlib.Path) -> None:
    content = bytearray(write_archive(path).read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def many_bytes(path: pathlib.Path) -> None:
    """300 MB of zeros, in 300 kB."""
    member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    member.size = 300_000_000
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(300):
            file.write(bytes(1_000_000))
        file.write(bytes(10240))


DAMAGED = {
    "missing": (lambda path: None, "does not exist"),
    "empty folder": (
        lambda path: path.mkdir(),
        "lacks data_batch_1.bin, data_batch_2.bin",
    ),
    "a file missing": (remove, "lacks data_batch_3.bin of"),
    "no archive": (lambda path: path.write_bytes(b"text"), "is no archive"),
    "empty file": (lambda path: path.touch(), "is no archive"),
    "cut archive": (cut, "is no archive, or a damaged one"),
    "flipped archive": (flip, "is no archive, or a damaged one"),
    "many bytes": (many_bytes, "has 300,000,000 bytes"),
    "empty batch": (change("data_batch_1.bin", b""), "has 0 bytes"),
    "half a record": (change("data_batch_2.bin", bytes(4000)), "has 4,000"),
    "class 10": (
        change("test_batch.bin", bytes(3073) + b"\x0a" + bytes(3072)),
        "image 1 is said to be of class 10",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_damaged_is_named_in_one_line(
    tmp_path: pathlib.Path, case: str
) -> None:
    prepare, expected = DAMAGED[case]
    path = tmp_path / "data"
    prepare(path)
    message = refusal(path)
    assert expected in message
    assert "give the published" in message


# Malicious archives


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("../outside.txt", tarfile.REGTYPE, "whose path leaves the folder"),
        ("a/../../outside.txt", tarfile.REGTYPE, "whose path leaves the folder"),
        ("/outside.txt", tarfile.REGTYPE, "whose path leaves the folder"),
        ("cifar-10-batches-bin/../..", tarfile.DIRTYPE, "leaves the folder"),
        ("link", tarfile.SYMTYPE, "which is a link or a device"),
        ("link", tarfile.LNKTYPE, "which is a link or a device"),
        ("pipe", tarfile.FIFOTYPE, "which is a link or a device"),
        ("device", tarfile.CHRTYPE, "which is a link or a device"),
        ("../line\nbreak", tarfile.REGTYPE, "'../line\\\\nbreak'"),
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused_and_writes_nothing(
    tmp_path: pathlib.Path, name: str, kind: bytes, problem: str
) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = "../../etc/passwd"
    inner = tmp_path / "inner"
    inner.mkdir()
    path = write_archive(inner / "data.tar.gz", member)
    before = processes.contents(tmp_path)
    assert problem in refusal(path)
    assert processes.contents(tmp_path) == before


# Without files


def test_without_a_network_one_line_says_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that nobody listens at, so that it is so on every machine.

    Nor do tasks start, which have no network at all.
    """
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    done = processes.run(
        *("--dataset=cifar10", "--model=cifar10", "--strategy=multi_worker_mirrored"),
        folder=tmp_path,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --dataset=cifar10 cannot be downloaded (URL fetch")
    assert "give --data_path with the published" in line
    assert not (tmp_path / "runs").exists()


def test_the_archive_that_was_downloaded_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = tmp_path / "keras" / "datasets"
    datasets.mkdir(parents=True)
    published = write_archive(datasets / cifar10_files.FILE_NAME)
    digest = hashlib.sha256(published.read_bytes()).hexdigest()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    # With another, Keras would download the published one, which a test cannot.
    monkeypatch.setattr(cifar10_files, "SHA256", digest)
    inputs.fetch(DataConfig(dataset="cifar10"))
    downloaded = load(DataConfig(dataset="cifar10"))
    read = load(config(write_folder(tmp_path / "data")))
    for ours, keras_own in (
        (read.train, downloaded.train),
        (read.evaluation, downloaded.evaluation),
    ):
        for one, other in zip(everything(ours), everything(keras_own), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    # Tasks without a network must not be left to find a damaged one.
    fetched = mock.Mock()
    monkeypatch.setattr(cifar10_files, "downloaded", fetched)
    inputs.fetch(DataConfig(dataset="cifar10"))
    fetched.assert_not_called()
    published.write_bytes(published.read_bytes()[:-1])
    inputs.fetch(DataConfig(dataset="cifar10"))
    fetched.assert_called_once_with()


def test_data_is_what_the_rest_of_the_program_expects(tmp_path: pathlib.Path) -> None:
    data: Data = load(config(write_archive(tmp_path / "a.tar.gz")))
    assert data.train.num_examples == 5 * IMAGES_PER_FILE
    assert data.evaluation.num_examples == IMAGES_PER_FILE
    assert (data.num_categories, data.best_eval_loss) == (None, None)
