"""Checks that augmented training is the same on any number of replicas."""

import functools

import numpy as np
import pytest

import models
from strategies.cluster.spec import Cluster
from tests.conformance.harness import UPDATES, same_training
from tests.conformance.harness import small_config as small_config_of
from tests.conformance.test_same_training import TOLERANCES
from tests.markers import chosen
from trainers.inputs.augmentation import DistortedImages
from trainers.inputs.sources import ArraySource, Data
from trainers.loop.builder import assemble_parts, create_strategy
from trainers.loop.parts import TrainingParts

NUM_STEPS = 8
SEVERAL_REPLICAS = chosen(
    [subject for subject in same_training() if subject[1] in (2, 3)],
    [("mirrored", 3)],
)


def assembled(strategy: str, replicas: int) -> TrainingParts:
    """Assembles the tutorial's network on crops of 8x8 pixels of 13 images."""
    config = small_config_of(
        strategy=strategy,
        num_replicas=replicas,
        model="cifar10",
        dtype="float64",
        global_batch_size=5,
        train_steps=NUM_STEPS,
        **UPDATES["sgd"],
    )
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (13, 10, 10, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.arange(13, dtype=np.int64) % 5)
    data = Data(
        train=source,
        evaluation=source,
        input_shape=(8, 8, 3),
        num_classes=5,
        augment=DistortedImages(height=8, width=8),
    )
    created = create_strategy(config, Cluster())
    return assemble_parts(config, created, data, models.load("cifar10"))


def losses(assembly: TrainingParts, first_step: int, num_steps: int) -> np.ndarray:
    batches = assembly.strategy.distribute(assembly.batches(first_step))
    return assembly.loop_function(batches, num_steps).sums["loss"]


@functools.cache
def trained(strategy: str, replicas: int) -> tuple[np.ndarray, list[np.ndarray]]:
    assembly = assembled(strategy, replicas)
    seen = losses(assembly, 0, NUM_STEPS)
    return seen, [weight.numpy() for weight in assembly.model.weights]


@pytest.mark.parametrize(("strategy", "replicas"), SEVERAL_REPLICAS)
def test_same_training_as_one_device(strategy: str, replicas: int) -> None:
    """The last batch of an epoch has 3 images, so that shares are uneven."""
    got, got_weights = trained(strategy, replicas)
    expected, expected_weights = trained("one_device", 1)
    assert np.ptp(expected) > 0.1, "the reference does not learn anything"
    tolerance = TOLERANCES["float64", "sgd"]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=0)
    for got_weight, weight in zip(got_weights, expected_weights, strict=True):
        distance = np.linalg.norm(got_weight - weight)
        assert distance <= tolerance * np.linalg.norm(weight)


# test_streams.py has a run that goes on with batches of a stream.
@pytest.mark.exhaustive
def test_a_run_that_goes_on_sees_what_it_would_have_seen() -> None:
    first, second = assembled("one_device", 1), assembled("tower", 3)
    losses(first, 0, 4)
    for variable, value in zip(
        second.state_variables(), first.state_variables(), strict=True
    ):
        variable.assign(value)
    np.testing.assert_allclose(
        losses(second, 4, 4), losses(first, 4, 4), rtol=TOLERANCES["float64", "sgd"]
    )
