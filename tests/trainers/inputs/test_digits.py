"""The digits, read without scikit-learn, and the split that holds examples out."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from trainers.config.data import DataConfig
from trainers.inputs import digits
from trainers.inputs.sources import Data, hold_out


def rows(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and labels of both parts together, and how many are held out."""
    (x, y), (x_held_out, y_held_out) = (
        [tensor.numpy() for tensor in part.tensors()]
        for part in (data.train, data.evaluation)
    )
    return np.concatenate([x, x_held_out]), np.concatenate([y, y_held_out]), y_held_out


def test_they_are_what_scikit_learn_loads() -> None:
    """Its folder is looked into, which nobody promises to leave as it is."""
    expected = load_digits()
    images, labels, train_eval_split = rows(digits.load(DataConfig(eval_fraction=0.2)))
    assert len(train_eval_split) == 359
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    by_content = {
        image.tobytes(): label for image, label in zip(images, labels, strict=True)
    }
    for image, label in zip(expected.images, expected.target, strict=True):
        image = (image / 16).astype(np.float32)
        assert by_content[image.tobytes()] == label


@pytest.mark.parametrize("fraction", [0.03, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_classes_keep_their_proportions(fraction: float, num_classes: int) -> None:
    labels = np.random.default_rng(1).geometric(0.4, 1000) % num_classes
    features = np.arange(1000)[:, np.newaxis]
    data = hold_out(features, labels, fraction, num_classes)
    together, with_labels, train_eval_split = rows(data)
    assert sorted(together[:, 0]) == list(range(1000))
    assert (with_labels == labels[together[:, 0]]).all()
    assert len(train_eval_split) == round(1000 * fraction)
    expected = np.bincount(labels, minlength=num_classes) * fraction
    counts = np.bincount(train_eval_split, minlength=num_classes)
    assert (np.abs(counts - expected) <= 1).all()


def test_within_a_class_examples_are_held_out_at_random_and_always_the_same() -> None:
    features = np.arange(1000)[:, np.newaxis]
    first, again = (
        hold_out(features, np.zeros(1000, np.int64), 0.5, 1).evaluation for _ in "12"
    )
    (chosen, _), (repeated, _) = first.tensors(), again.tensors()
    assert (chosen == repeated).numpy().all()
    # Neighbours go together as often as not: 250 of 500 with a deviation of 11.
    pairs = np.isin(np.arange(1000), chosen).reshape(-1, 2)
    assert 200 <= (pairs[:, 0] == pairs[:, 1]).sum() <= 300
