"""The confusion matrix of an evaluation: right, the same everywhere, and readable."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import confusion_matrix

from strategies.cluster.spec import Cluster
from tests.conformance.harness import alone_and_uneven, small_config, subjects
from tests.event_files import read_events
from tests.markers import chosen, further
from tests.processes import metrics_of, result_of, train
from trainers import inputs
from trainers.config.config import Config
from trainers.loop.builder import assemble, create_strategy
from trainers.model.confusion_matrix import draw_confusion

TRAINED = (
    *("--model=mlp", "--hidden_units=16", "--train_steps=60", "--learning_rate=0.003"),
    # 359 examples: no evaluation step divides evenly.
    *("--set=report.eval_global_batch_size=100", "--eval_every_steps=30"),
    "--jit_compile=off",
)


def predicted(run_dir: pathlib.Path) -> np.ndarray:
    """Counts from what the exported model predicts, without this project's code."""
    model = keras.models.load_model(run_dir / "export" / "last.keras", compile=False)
    source = inputs.load(Config().data).evaluation
    everything = tf.range(source.num_examples, dtype=tf.int64)
    features, labels = source.read(source.tensors(), everything)
    predictions = model.predict(features.numpy(), verbose=0).argmax(axis=-1)
    return confusion_matrix(labels.numpy(), predictions, labels=range(10))


@pytest.mark.parametrize(
    "flags",
    [
        ("--strategy=one_device",),
        further(("--strategy=mirrored", "--num_replicas=3")),
        further(("--strategy=tower", "--num_replicas=3", "--update=async")),
        # Counts are sums over replicas and workers, as the loss and all metrics are.
        pytest.param(
            ("--strategy=parameter_server", "--num_workers=2"),
            marks=(pytest.mark.cluster, pytest.mark.exhaustive),
        ),
        pytest.param(
            ("--strategy=multi_worker_mirrored", "--num_workers=2"),
            marks=(pytest.mark.cluster, pytest.mark.exhaustive),
        ),
    ],
    ids=lambda flags: flags[0].removeprefix("--strategy="),
)
def test_counts_are_those_of_what_the_model_predicts(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    train(tmp_path / "run", *flags, *TRAINED, "--export=keras")
    rows = [row for row in metrics_of(tmp_path / "run") if "eval_loss" in row]
    assert [row["step"] for row in rows] == [30, 60]
    counts = np.array(rows[-1]["eval_confusion_matrix"])
    np.testing.assert_array_equal(counts, predicted(tmp_path / "run"))
    accuracy = result_of(tmp_path / "run")["final"]["eval_accuracy"]
    assert np.trace(counts) / counts.sum() == pytest.approx(accuracy)
    events = read_events(tmp_path / "run" / "tb" / "eval")
    assert [point.step for point in events.points["confusion_matrix"]] == [30, 60]
    assert events.points["confusion_matrix"][-1].plugin == "images"
    width, height, content = events.points["confusion_matrix"][-1].value
    drawn = draw_confusion(counts, None)
    assert (int(height), int(width), 3) == drawn.shape
    np.testing.assert_array_equal(tf.io.decode_png(content).numpy(), drawn)


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(alone_and_uneven(subjects()), [("one_device", 1), ("tower", 3)]),
)
def test_counts_are_the_same_under_every_strategy(strategy: str, replicas: int) -> None:
    """Counts at the same weights."""
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        # The last batch has one row, and replicas without any carry one that must not
        # count.
        eval_global_batch_size=11,
        num_examples=100,
    )
    assembly = assemble(config, create_strategy(config, Cluster()))
    source = assembly.data.evaluation
    assert source.num_examples % 11 == 1
    everything = tf.range(source.num_examples, dtype=tf.int64)
    features, labels = source.read(source.tensors(), everything)
    predictions = assembly.model(features).numpy().argmax(axis=-1)
    counts = assembly.evaluation.run().confusion
    assert counts is not None
    assert counts.dtype == np.int64
    expected = confusion_matrix(labels.numpy(), predictions, labels=range(5))
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize(("num_classes", "has_counts"), [(100, True), (101, False)])
def test_of_many_classes_there_is_none(num_classes: int, has_counts: bool) -> None:
    config = small_config(num_classes=num_classes, num_examples=600)
    assembly = assemble(config, create_strategy(config, Cluster()))
    assert (assembly.evaluation.run().confusion is not None) == has_counts


def test_of_a_loss_that_is_not_finite_there_is_none() -> None:
    config = small_config()
    assembly = assemble(config, create_strategy(config, Cluster()))
    # The last layer: a ReLU turns NaN into zero.
    bias = assembly.model.trainable_variables[-1]
    bias.assign(np.full(bias.shape, np.nan))
    assert assembly.evaluation.run().confusion is None


def colors_of(picture: np.ndarray) -> set[tuple[int, ...]]:
    """Returns the colors of cells and paper; lines cover fewer pixels."""
    colors, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(c) for c, n in zip(colors.tolist(), counts, strict=True) if n > 2000}


def test_cells_deepen_with_the_fraction_and_errors_are_red() -> None:
    counts = np.diag([3, 0, 9])
    counts[0, 2] = 1
    picture = draw_confusion(counts, None)
    assert picture.dtype == np.uint8
    # The roots of 3/4 and 1/4 of the depth; a class without examples is white.
    mostly_right = (52, 130, 78)
    mistake = (222, 142, 142)
    expected = {(255, 255, 255), (20, 110, 50), mostly_right, mistake}
    found = colors_of(picture)
    assert len(found) == len(expected)
    for color in expected:
        # Colors are rounded to bytes.
        assert any(np.abs(np.subtract(color, c)).max() <= 1 for c in found), color


def test_names_of_classes_are_drawn() -> None:
    counts = np.diag([3, 0, 9])
    names = ["a", "b", "a name that is much too long to show"]
    assert not np.array_equal(
        draw_confusion(counts, None), draw_confusion(counts, names)
    )


def test_many_classes_have_small_cells_without_numbers() -> None:
    counts = np.full((100, 100), 7)
    height, width, _ = draw_confusion(counts, None).shape
    assert height == width < 1500
