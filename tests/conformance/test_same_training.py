"""Checks that every strategy trains as one device does, up to rounding."""

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
# zero, which makes rounding larger. In double precision rounding cannot hide a wrong
# factor, however small.
TOLERANCES = {
    ("float32", "sgd"): 1e-6,
    ("float32", "adamw"): 1e-5,
    ("float64", "sgd"): 1e-12,
    ("float64", "adamw"): 1e-10,
}


# Least difference of the largest and the smallest loss of a run that learns.
LEARNS = 0.1

# Seeds of initial weights and order. None was chosen for its result; `make test` has
# the first two.
SEEDS = [
    pytest.param(range(2), id="seeds0-1"),
    pytest.param(range(2, 10), id="seeds2-9", marks=pytest.mark.exhaustive),
]


def subjects(representatives: list[tuple[str, int]]) -> list[Any]:
    """Returns all subjects, of which `make test` has only the representatives.

    One, two and four replicas divide the batches that three do not, and add little.
    """
    return chosen(same_training(), representatives)


def spec_of(model: str, dtype: str) -> ModelSpec:
    """Returns a model whose training rounding does not decide: see `smooth.py`."""
    return smooth(model) if dtype == "float32" else models.load(model)


@functools.lru_cache(maxsize=1)
def subject(
    strategy: str, replicas: int, model: str, update: str, dtype: str
) -> Subject:
    """Assembles a subject, and keeps it for the next layout to save a trace."""
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
    """Assembles one device, and keeps it beside the subject."""
    config = small_config(model=model, dtype=dtype, **UPDATES[update])
    return Subject.of(config, spec_of(model, dtype))


@functools.cache
def of_one_device(
    model: str, update: str, dtype: str, layout: str, seed: int | None = None
) -> Outcome:
    """Returns the outcome of one device."""
    outcome = reference(model, update, dtype).run(LAYOUTS[layout], seed=seed)
    assert np.ptp(outcome.losses) > LEARNS, "the reference does not learn anything"
    if update == "adamw":
        assert outcome.gradient_norm > 0.1, "the reference never clips"
    return outcome


def assert_same_training(outcome: Outcome, expected: Outcome, tolerance: float) -> None:
    """Asserts that two runs have equal losses and variables.

    Args:
      outcome: Outcome to check.
      expected: Outcome of the reference.
      tolerance: Largest relative difference of a loss, and of a variable by its norm.
    """
    np.testing.assert_allclose(outcome.losses, expected.losses, rtol=tolerance, atol=0)
    for index, (got, want) in enumerate(
        zip(outcome.variables, expected.variables, strict=True)
    ):
        distance = np.linalg.norm(got - want)
        assert distance <= tolerance * np.linalg.norm(want), f"variable {index}"


SEVERAL_REPLICAS = [s for s in uneven(same_training()) if s[1] > 1]
# Strategies do not look into models: test_gradient_accumulation.py has the convnet.
MODELS_AND_UPDATES = chosen(
    itertools.product(("mlp", "convnet"), UPDATES),
    [("mlp", "sgd"), ("mlp", "adamw")],
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("model", "update"), MODELS_AND_UPDATES)
@pytest.mark.parametrize(("strategy", "replicas"), subjects(SEVERAL_REPLICAS))
def test_same_training_as_one_device(
    strategy: str, replicas: int, model: str, update: str, layout: str
) -> None:
    """Rounding cannot hide an error in double precision."""
    outcome = subject(strategy, replicas, model, update, "float64").run(LAYOUTS[layout])
    assert_same_training(
        outcome,
        of_one_device(model, update, "float64", layout),
        TOLERANCES["float64", update],
    )


@pytest.mark.parametrize("layout", chosen(LAYOUTS, ["uneven"]))
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(
    ("model", "update"),
    chosen(itertools.product(("mlp", "convnet"), UPDATES), [("mlp", "sgd")]),
)
# The sums of mirrored are those of Keras's strategies, and rounded most often.
@pytest.mark.parametrize(("strategy", "replicas"), subjects([("mirrored", 3)]))
def test_same_training_in_single_precision(
    strategy: str, replicas: int, model: str, update: str, seeds: range, layout: str
) -> None:
    """The models have no ties for rounding to decide, so every seed passes."""
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
        [("hierarchical", 4)],
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
