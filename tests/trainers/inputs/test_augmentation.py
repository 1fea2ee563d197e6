"""Distortions of an image depend on seed, step and image alone."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from trainers.inputs.augmentation import CentralCrops, DistortedImages
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import ArraySource

# Statistics are held against a chance of 1e-6, so that no fixed seed is unlucky.
UNLIKELY = 1e-6
SIDE = 12
CROP = DistortedImages(height=8, width=8)
# Leaves colors alone, so that it can be seen which pixels there are.
ONLY_CROP = DistortedImages(height=8, width=8, max_brightness=0.0, contrast=(1.0, 1.0))


def random_images(count: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def distorted(
    images: np.ndarray,
    indices: list[int],
    step: int = 3,
    seed: int = 5,
    how: DistortedImages = CROP,
) -> np.ndarray:
    return how(
        tf.constant(images),
        tf.constant(indices, tf.int64),
        tf.constant(step, tf.int64),
        seed,
    ).numpy()


def standardized(images: np.ndarray) -> np.ndarray:
    return tf.image.per_image_standardization(images.astype(np.float32)).numpy()


def test_an_image_is_the_same_in_any_row_of_any_batch() -> None:
    images = random_images(9)
    whole = distorted(images, list(range(9)))
    for rows in ([4], [8, 0], [2, 3, 4, 5, 6]):
        np.testing.assert_array_equal(distorted(images[rows], rows), whole[rows])


def test_seed_step_and_image_each_make_a_difference() -> None:
    images = np.repeat(random_images(1), 2, axis=0)
    first = distorted(images, [0, 1])
    others = [
        first[1],
        distorted(images, [0, 1], step=4)[0],
        distorted(images, [0, 1], seed=6)[0],
    ]
    for other in others:
        assert np.abs(first[0] - other).max() > 0.1


def test_the_distortion_of_an_image_is_a_golden_value() -> None:
    """A golden value: a run of last year can be repeated."""
    image = distorted(random_images(1), [41], step=12, seed=7)[0]
    np.testing.assert_allclose(image[0, 0], GOLDEN, atol=1e-5)


GOLDEN = [-1.048003, -1.745414, -0.793992]


def test_every_place_and_both_sides_are_equally_likely() -> None:
    """Found by trying all crops of one image, which have nothing in common."""
    count = 5000
    image = random_images(1)
    places = [
        crop[:, ::-1] if flipped else crop
        for flipped in (False, True)
        for top in range(SIDE - 7)
        for left in range(SIDE - 7)
        for crop in [image[0, top : top + 8, left : left + 8]]
    ]
    # A crop is nearest to itself: the product of two that are standardized.
    candidates = standardized(np.stack(places)).reshape(len(places), -1)
    made = distorted(
        np.repeat(image, count, axis=0), list(range(count)), how=ONLY_CROP
    ).reshape(count, -1)
    likeness = made @ candidates.T / candidates.shape[1]
    found = likeness.argmax(axis=1)
    np.testing.assert_allclose(likeness.max(axis=1), 1, atol=1e-3)
    counts = np.bincount(found, minlength=len(places))
    assert scipy.stats.chisquare(counts).pvalue > UNLIKELY


@pytest.mark.parametrize("factor", [0.2, 1.8])
def test_contrast_is_that_of_tensorflow(factor: float) -> None:
    images = random_images(4)
    how = DistortedImages(height=SIDE, width=SIDE, contrast=(factor, factor))
    made = distorted(images, [0, 1, 2, 3], how=how)
    expected = tf.image.adjust_contrast(images.astype(np.float32), factor)
    expected = tf.image.per_image_standardization(expected).numpy()
    for image, same in zip(made, expected, strict=True):
        # Half of them are flipped.
        distance = min(np.abs(image - same).max(), np.abs(image[:, ::-1] - same).max())
        assert distance < 1e-4


def test_what_is_added_to_all_pixels_is_gone_once_they_are_standardized() -> None:
    """The tutorial says this of its brightness, too."""
    bright = DistortedImages(height=8, width=8, contrast=(1.0, 1.0))
    images = random_images(5)
    rows = list(range(5))
    np.testing.assert_allclose(
        distorted(images, rows, how=bright),
        distorted(images, rows, how=ONLY_CROP),
        atol=1e-4,
    )


def test_the_middle_is_where_tensorflow_has_it() -> None:
    images = random_images(3)
    expected = tf.image.resize_with_crop_or_pad(images.astype(np.float32), 8, 8)
    np.testing.assert_allclose(
        CentralCrops(height=8, width=8)(tf.constant(images)),
        tf.image.per_image_standardization(expected),
        atol=1e-5,
    )


def test_shares_are_the_rows_of_the_whole_batch_whoever_reads_them() -> None:
    """Read by one process or by each of several, from the start or from the middle."""
    images = random_images(21)
    source = ArraySource(images, np.arange(21, dtype=np.int64))
    order = Order(num_examples=21, global_batch_size=8, seed=9)

    def features(shard_index: int, num_shards: int, first: int = 0) -> list[np.ndarray]:
        batches = SourceBatches(
            source=source, order=order, first_step=first, last_step=7, augment=CROP
        )
        return [
            batch.features.numpy()[: int(batch.num_rows)]
            for batch in batches.dataset(shard_index, num_shards)
        ]

    whole = features(0, 1)
    assert [len(batch) for batch in whole] == [8, 8, 5, 8, 8, 5, 8]
    for num_shards in (2, 3):
        shares = zip(*(features(s, num_shards) for s in range(num_shards)), strict=True)
        for batch, parts in zip(whole, shares, strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), batch)
    for late, batch in zip(features(0, 1, first=4), whole[4:], strict=True):
        np.testing.assert_array_equal(late, batch)
