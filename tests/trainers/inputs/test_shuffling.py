"""Every epoch shows each example once, in an order that belongs to the run."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as generate

from strategies.common.types import Batch
from strategies.inner_loop.sharding import row_weights, take_shard
from tests.markers import further
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import ArraySource


def make_source(num_examples: int) -> ArraySource:
    features = np.arange(num_examples, dtype=np.float32)[:, np.newaxis]
    return ArraySource(features, np.arange(num_examples, dtype=np.int64))


def read_batches(
    order: Order, first: int, last: int, shard_index: int = 0, shares: int = 1
) -> list[Batch]:
    source = make_source(order.num_examples)
    batches = SourceBatches(
        source=source, order=order, first_step=first, last_step=last
    )
    return list(batches.dataset(shard_index, shares))


def counted(batch: Batch) -> list[int]:
    """Returns the examples of a share that count."""
    weights = row_weights(batch, tf.cast(batch.indices, tf.float32)).numpy()
    assert len(weights) >= 1, "no share may be without a row"
    assert weights.sum() == int(batch.num_rows)
    return batch.labels.numpy()[weights == 1].tolist()


# A case makes up to four tf.data pipelines, some 20 ms apiece.
few = settings(max_examples=12, deadline=None)
lengths = generate.integers(1, 70)
batch_sizes = generate.integers(1, 80)
replica_counts = generate.integers(1, 6)
seeds = generate.integers(0, 2**31 - 1)


@few
@given(lengths, batch_sizes, replica_counts, seeds, generate.booleans())
def test_an_epoch_shows_every_example_exactly_once(
    num_examples: int, batch_size: int, replicas: int, seed: int, sliced: bool
) -> None:
    """Replicas read their own rows, or slices of a whole batch."""
    order = Order(num_examples=num_examples, global_batch_size=batch_size, seed=seed)
    epoch = order.steps_per_epoch
    whole = read_batches(order, epoch, 2 * epoch)
    seen: list[int] = []
    for replica in range(replicas):
        if sliced:
            shares = [take_shard(batch, replica, replicas) for batch in whole]
        else:
            shares = read_batches(order, epoch, 2 * epoch, replica, replicas)
        for shard_index, batch in zip(shares, whole, strict=True):
            assert int(shard_index.global_size) == len(batch.labels)
            assert int(shard_index.replica) == replica
            np.testing.assert_array_equal(shard_index.labels, shard_index.indices)
            np.testing.assert_array_equal(
                shard_index.features[:, 0], shard_index.indices
            )
            seen.extend(counted(shard_index))
    assert sorted(seen) == list(range(num_examples))


@few
@given(lengths, batch_sizes, seeds, generate.integers(0, 3))
def test_without_the_last_batch_all_are_of_one_size(
    num_examples: int, batch_size: int, seed: int, epoch: int
) -> None:
    """Each epoch has as many full batches as there are, of different examples."""
    batch_size = min(batch_size, num_examples)
    order = Order(
        num_examples=num_examples,
        global_batch_size=batch_size,
        seed=seed,
        drop_last_batch=True,
    )
    assert order.steps_per_epoch == num_examples // batch_size
    first = epoch * order.steps_per_epoch
    batches = read_batches(order, first, first + order.steps_per_epoch)
    seen = [example for batch in batches for example in counted(batch)]
    assert [int(batch.global_size) for batch in batches] == [batch_size] * len(batches)
    assert len(set(seen)) == len(seen) == order.examples_per_epoch


def test_every_example_is_left_out_equally_often() -> None:
    """10 examples in batches of 4: each epoch of 2000 leaves 2 of them out.

    Chi-squared against a chance of 1e-6.
    """
    order = Order(num_examples=10, global_batch_size=4, seed=3, drop_last_batch=True)
    epochs = tf.data.Dataset.range(2 * 2000).map(lambda k: order.indices(k, 0, 1)[0])
    counts = np.bincount(next(iter(epochs.batch(2 * 2000))).numpy().ravel())
    left_out = 2000 - counts
    assert left_out.sum() == 2 * 2000
    assert scipy.stats.chisquare(left_out).pvalue > 1e-6


@few
@given(lengths, batch_sizes, replica_counts, seeds)
def test_shares_put_together_are_the_global_batch_in_order(
    num_examples: int, batch_size: int, replicas: int, seed: int
) -> None:
    order = Order(num_examples=num_examples, global_batch_size=batch_size, seed=seed)
    for batch in read_batches(order, 0, order.steps_per_epoch):
        shares = [counted(take_shard(batch, r, replicas)) for r in range(replicas)]
        together = [label for shard_index in shares for label in shard_index]
        assert together == batch.labels.numpy().tolist()
        sizes = [len(shard_index) for shard_index in shares]
        assert max(sizes) - min(sizes) <= 1
        assert sizes[0] >= 1


# The next test starts at any step, and knows the batch of a step by itself.
@pytest.mark.exhaustive
@few
@given(lengths, batch_sizes, seeds, generate.integers(0, 20))
def test_a_run_can_start_at_any_step(
    num_examples: int, batch_size: int, seed: int, first: int
) -> None:
    order = Order(num_examples=num_examples, global_batch_size=batch_size, seed=seed)
    from_the_start = read_batches(order, 0, first + 3)
    from_there = read_batches(order, first, first + 3)
    for late, batch in zip(from_there, from_the_start[first:], strict=True):
        np.testing.assert_array_equal(late.indices, batch.indices)
        assert int(late.step) == int(batch.step)


@few
@given(lengths, batch_sizes, replica_counts, seeds, generate.integers(0, 40))
def test_batches_that_come_in_spans_are_those_of_their_steps(
    num_examples: int, batch_size: int, replicas: int, seed: int, first: int
) -> None:
    """Compared with `at`, which knows no spans, for the last of the shares."""
    order = Order(num_examples=num_examples, global_batch_size=batch_size, seed=seed)
    source = make_source(num_examples)
    batches = SourceBatches(
        source=source, order=order, first_step=first, last_step=first + 40
    )
    shard_index = replicas - 1
    found = list(batches.dataset(shard_index, replicas))
    assert [int(batch.step) for batch in found] == list(range(first, first + 40))
    for batch in found[::13]:
        alone = batches.at(source.tensors(), batch.step, shard_index, replicas)
        for got, want in zip(batch, alone, strict=True):
            np.testing.assert_array_equal(got, want)


def steps_of_spans(features: np.ndarray, **settings: Any) -> list[int]:
    """Returns the number of steps of each span of two epochs, in batches of 4."""
    order = Order(num_examples=len(features), global_batch_size=4, seed=1)
    batches = SourceBatches(
        source=ArraySource(features, np.arange(len(features))),
        order=order,
        first_step=0,
        last_step=2 * order.steps_per_epoch,
        **settings,
    )
    return [len(span.step) for span in batches.spans(0, 1)]


def test_small_examples_come_many_steps_at_a_time_and_large_ones_do_not() -> None:
    """202 examples are 50 batches of 4 and one of 2, which is a span alone."""
    small = np.zeros([202, 5], np.float32)
    assert steps_of_spans(small) == [32, 18, 1] * 2
    assert steps_of_spans(np.zeros([12, 512, 512, 3], np.float32)) == [1] * 6

    def unchanged(features: Any, indices: Any, step: Any, seed: int) -> Any:
        """Takes the number of one step, so that steps cannot be read together."""
        assert step.shape == ()
        return features

    assert steps_of_spans(small, augment=unchanged) == [1] * 102


def test_epochs_and_seeds_differ_and_a_seed_repeats() -> None:
    def epoch(seed: int | None, number: int) -> list[int]:
        order = Order(num_examples=50, global_batch_size=50, seed=seed)
        (batch,) = read_batches(order, number, number + 1)
        return batch.labels.numpy().tolist()

    orders = [epoch(1, 0), epoch(1, 1), epoch(2, 0), epoch(2, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert epoch(1, 1) == orders[1]
    assert epoch(None, 0) == epoch(None, 1) == list(range(50))


def places_over_epochs(num_examples: int, num_epochs: int) -> np.ndarray:
    """Returns the first and second example of each epoch, int64 [epochs, 2]."""
    order = Order(num_examples=num_examples, global_batch_size=2, seed=3)
    per_epoch = order.steps_per_epoch
    firsts = tf.data.Dataset.range(num_epochs).map(
        lambda epoch: order.indices(epoch * per_epoch, 0, 1)[0]
    )
    return next(iter(firsts.batch(num_epochs))).numpy()


@pytest.mark.parametrize("num_examples", [3, *map(further, (10, 97)), 1438])
def test_no_example_and_no_neighbourhood_is_favoured(num_examples: int) -> None:
    """Counts, over 2000 epochs, the first example and the distance of the second.

    Chi-squared over at most 50 cells, against a chance of 1e-6. A permutation keyed
    by plain (seed, epoch) fails with less than 1e-12 at every one of these lengths.
    """
    places = places_over_epochs(num_examples, num_epochs=2000)
    distance = (places[:, 1] - places[:, 0]) % num_examples - 1
    for values, length in ((places[:, 0], num_examples), (distance, num_examples - 1)):
        cells = min(length, 50)
        counts = np.bincount(values * cells // length, minlength=cells)
        sizes = np.bincount(np.arange(length) * cells // length, minlength=cells)
        expected = sizes / length * len(values)
        assert scipy.stats.chisquare(counts, expected).pvalue > 1e-6
