"""Tests of embeddings in clusters, as processes of the real entry point."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.event_files import read_events
from tests.processes import NO_EVALUATION, metrics_of, train

pytestmark = pytest.mark.cluster

# 24,000 rows are nearly all of the weights; batches of 50 use frequent rows many times.
FLAGS = (
    "--dataset=clicks",
    "--model=wide_embedding",
    "--dtype=float64",
    "--set=data.num_columns=4",
    "--set=data.num_categories=6000",
    "--set=model.embedding_dimension=8",
    "--hidden_units=16",
    "--set=data.num_examples=480",
    "--train_steps=20",
    "--global_batch_size=50",
    "--optimizer=sgd",
    "--learning_rate=0.5",
    "--clip_global_norm=0.01",
    "--summary_every_steps=1",
    *("--set=report.histogram_every_steps=10", "--eval_every_steps=10"),
    "--jit_compile=off",
)
TABLE_BYTES = 24_000 * 8 * 8
# The bound of "the same training" for sgd in double precision, docs/numerics.md.
TOLERANCE = 1e-12


# 2,400 examples are 12 batches of 192 and one of 96, in the middle of a call. The type
# is double precision, because both runs round their sums in another order.
SENTENCES = (
    "--dataset=examples.text_classifier:reviews",
    "--model=examples.text_classifier:model",
    "--dtype=float64",
    "--train_steps=20",
    "--steps_per_loop=20",
    "--global_batch_size=192",
    "--optimizer=sgd",
    "--learning_rate=0.5",
)


def variables_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    path = str(folder / "checkpoints/step-00000020/variables")
    reader = tf.train.load_checkpoint(path)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if not isinstance(reader.get_tensor(name), bytes)
    }


def assert_same_variables(folder: pathlib.Path, reference: pathlib.Path) -> None:
    got, expected = variables_of(folder), variables_of(reference)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        distance = np.linalg.norm(got[name] - value)
        # A value that is zero except for rounding, such as the gradient of a key's
        # bias, meets no relative bound.
        assert distance <= max(TOLERANCE * np.linalg.norm(value), 1e-15), name


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(folder, "--strategy=one_device", *FLAGS)
    return folder


@pytest.mark.parametrize(
    "workers",
    [
        # The table's size is unknown after the loop over micro-batches.
        ("--update=async", "--num_workers=1", "--gradient_accumulation_steps=2"),
        pytest.param(
            ("--update=sync", "--num_workers=2"), marks=pytest.mark.exhaustive
        ),
    ],
    ids=" ".join,
)
def test_two_servers_hold_half_of_the_rows_and_train_the_same(
    workers: tuple[str, ...], reference: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    cluster = ("--strategy=parameter_server", "--num_ps=2")
    result = train(tmp_path / "two", *cluster, *workers, *FLAGS)
    for row, want in zip(
        metrics_of(tmp_path / "two"), metrics_of(reference), strict=True
    ):
        for name in ("train_loss", "gradient_norm", "weight_norm", "eval_loss"):
            assert (name in row) == (name in want)
            if name in row:
                assert row[name] == pytest.approx(want[name], rel=TOLERANCE)
        assert row.get("gradient_norm", 1) > 0.01, "this step does not clip"
    assert_same_variables(tmp_path / "two", reference)
    held = result["variable_bytes"]
    assert set(held) == {"ps-0 CPU:0", "ps-1 CPU:0"}
    for size in held.values():
        # The dense layers are less than a twentieth of half of the table.
        assert size == pytest.approx(TABLE_BYTES / 2, rel=0.05)
    # A worker reads weights and sends gradients of at most 50 x 4 rows.
    assert result["communication"]["bytes_per_step_per_replica"] < TABLE_BYTES / 10
    (point,) = read_events(tmp_path / "two/tb/train").points["variables"]
    lines = str(point.value).split("\\n")
    for index in (0, 1):
        (line,) = (row for row in lines if f"shard_{index} " in row)
        assert f"ps-{index} CPU:0" in line


TWO_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")


def test_steps_of_one_call_may_use_different_numbers_of_rows(
    reference: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """TensorFlow refused the second number of rows; calls of one step have only one.

    Every step uses another number of rows, and the last of ten batches is smaller.
    """
    one_call = (
        *("--summary_every_steps=20", *NO_EVALUATION),
        "--steps_per_loop=20",
    )
    result = train(tmp_path / "workers", *TWO_WORKERS, *FLAGS, *one_call)
    assert_same_variables(tmp_path / "workers", reference)
    assert result["seconds"]["input"] >= 0


@pytest.mark.exhaustive
def test_sentences_of_one_call_may_use_different_numbers_of_rows(
    tmp_path: pathlib.Path,
) -> None:
    train(tmp_path / "alone", "--strategy=one_device", *SENTENCES)
    train(tmp_path / "workers", *TWO_WORKERS, *SENTENCES)
    assert_same_variables(tmp_path / "workers", tmp_path / "alone")
