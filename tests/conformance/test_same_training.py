"""Every strategy is the same training as one device, to rounding."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import models
from models.classification import ModelSpec
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    same_training,
    small_config,
    uneven,
)
from tests.conformance.smooth import smooth
from tests.markers import chosen

# The bounds of "the same training" in docs/numerics.md. Adam divides by numbers near
# zero, so that rounding counts for more. In double precision no wrong factor,
# however small, can hide behind rounding.
TOLERANCES = {
    ("float32", "sgd"): 1e-6,
    ("float32", "adamw"): 1e-5,
    ("float64", "sgd"): 1e-12,
    ("float64", "adamw"): 1e-10,
}


# How much the largest loss of a run differs from the smallest, at least.
LEARNS = 0.1

# Seeds of initial weights and order, none of them chosen for what it shows: the first
# two in `make test`.
SEEDS = [
    pytest.param(range(2), id="seeds0-1"),
    pytest.param(range(2, 10), id="seeds2-9", marks=pytest.mark.exhaustive),
]


def subjects(representatives: list[tuple[str, int]]) -> list[Any]:
    """One replica, two and four divide what three do not, and add little."""
    return chosen(same_training(), representatives)


def spec_of(model: str, dtype: str) -> ModelSpec:
    """Returns what rounding cannot decide: see `tests.conformance.smooth`."""
    return smooth(model) if dtype == "float32" else models.load(model)


@functools.lru_cache(maxsize=1)
def subject(
    strategy: str, replicas: int, model: str, update: str, dtype: str
) -> Subject:
    """Kept for the next layout, so that it need not be traced again."""
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        model=model,
        dtype=dtype,
        **UPDATES[update],
    )
    return Subject.of(config, spec_of(model, dtype))


@functools.cache
def reference(model: str, update: str, dtype: str) -> Subject:
    """Returns one device, beside the one subject that is kept."""
    config = small_config(model=model, dtype=dtype, **UPDATES[update])
    return Subject.of(config, spec_of(model, dtype))


@functools.cache
def of_one_device(
    model: str, update: str, dtype: str, layout: str, seed: int | None = None
) -> Outcome:
    """What one device does."""
    outcome = reference(model, update, dtype).run(LAYOUTS[layout], seed=seed)
    assert np.ptp(outcome.losses) > LEARNS, "the reference does not learn anything"
    if update == "adamw":
        assert outcome.gradient_norm > 0.1, "the reference never clips"
    return outcome


def assert_same_training(outcome: Outcome, expected: Outcome, tolerance: float) -> None:
    np.testing.assert_allclose(outcome.losses, expected.losses, rtol=tolerance, atol=0)
    for index, (got, want) in enumerate(
        zip(outcome.variables, expected.variables, strict=True)
    ):
        distance = np.linalg.norm(got - want)
        assert distance <= tolerance * np.linalg.norm(want), f"variable {index}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize(("strategy", "replicas"), subjects(uneven(same_training())))
def test_same_training_as_one_device(
    strategy: str, replicas: int, model: str, update: str, layout: str
) -> None:
    """In double precision no error is small enough to hide behind rounding."""
    outcome = subject(strategy, replicas, model, update, "float64").run(LAYOUTS[layout])
    assert_same_training(
        outcome,
        of_one_device(model, update, "float64", layout),
        TOLERANCES["float64", update],
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(
    ("model", "update"),
    chosen(
        itertools.product(("mlp", "convnet"), UPDATES),
        [("mlp", "sgd"), ("convnet", "adamw")],
    ),
)
@pytest.mark.parametrize(("strategy", "replicas"), subjects(uneven(same_training())))
def test_same_training_in_single_precision(
    strategy: str, replicas: int, model: str, update: str, seeds: range, layout: str
) -> None:
    """Of models without ties, for whichever seed."""
    single = subject(strategy, replicas, model, update, "float32")
    for seed in seeds:
        assert_same_training(
            single.run(LAYOUTS[layout], seed=seed),
            of_one_device(model, update, "float32", layout, seed),
            TOLERANCES["float32", update],
        )


@pytest.mark.parametrize(
    ("reduction", "replicas"),
    chosen(
        [
            *(("one_device", replicas) for replicas in (2, 3, 4)),
            # Three replicas are refused: see tests/invalid_commands.py.
            *(("hierarchical", replicas) for replicas in (1, 2, 4)),
        ],
        [("hierarchical", 2), ("hierarchical", 4)],
    ),
)
def test_same_training_by_each_reduction(reduction: str, replicas: int) -> None:
    config = small_config(
        strategy="mirrored",
        num_replicas=replicas,
        cross_device_reduction=reduction,
        model="mlp",
        dtype="float64",
        **UPDATES["sgd"],
    )
    assert_same_training(
        Subject.of(config).run(LAYOUTS["uneven"]),
        of_one_device("mlp", "sgd", "float64", "uneven"),
        TOLERANCES["float64", "sgd"],
    )
