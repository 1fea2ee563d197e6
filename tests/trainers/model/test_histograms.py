"""Histograms of anything a diverging run can hold."""

import numpy as np
import pytest
import tensorflow as tf

from trainers.model.histograms import NUM_BUCKETS, histogram


def test_every_value_is_counted_once_in_its_bucket() -> None:
    values = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    rows = histogram(tf.constant(values)).numpy()
    counts, edges = np.histogram(values.astype(np.float64), NUM_BUCKETS)
    np.testing.assert_allclose(rows[:, 0], edges[:-1], rtol=1e-6)
    np.testing.assert_allclose(rows[:, 1], edges[1:], rtol=1e-6)
    # A value on an edge may round into either neighbour.
    assert np.abs(rows[:, 2] - counts).sum() <= 2
    assert rows[:, 2].sum() == values.size


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ([1.0, np.inf, 2.0], 2),
        ([1.0, -np.inf, np.nan], 1),
        ([np.nan, np.inf], 0),
        ([], 0),
        ([3.0, 3.0], 2),
        ([1e30, 1e30], 2),
        ([1e308, -1e308], 2),
    ],
)
def test_what_is_not_finite_is_left_out(values: list[float], counted: int) -> None:
    rows = histogram(tf.constant(values, tf.float64)).numpy()
    assert rows.shape == (NUM_BUCKETS, 3)
    assert rows[:, 2].sum() == counted
