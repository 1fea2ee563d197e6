"""Every strategy is the same training as one device, to rounding."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    alone_and_uneven,
    same_training,
    small_config,
    uneven,
)

# The bounds of "the same training" in docs/design.md. Adam divides by numbers near
# zero, so that rounding counts for more. In double precision no wrong factor,
# however small, can hide behind rounding.
TOLERANCES = {
    ("float32", "sgd"): 1e-6,
    ("float32", "adamw"): 1e-5,
    ("float64", "sgd"): 1e-12,
    ("float64", "adamw"): 1e-10,
}


# Where a unit is cut off at zero, or the larger of two is taken, a tie that rounding
# decides makes another training of all that follows, and both are right. In single
# precision each of the seeds 0, 1, 2 and 5 meets one in two to five of the 120 cases,
# with sgd as with Adam; with seed 4 there is none.
SEED = 4

REPRESENTATIVE = {
    "float64": alone_and_uneven(same_training()),
    "float32": uneven(same_training()),
}
SUBJECTS = [
    pytest.param(
        *(*subject, dtype),
        # Two replicas and four divide what three do not. In double precision no error
        # is small enough to hide behind rounding: single precision adds little.
        marks=() if subject in REPRESENTATIVE[dtype] else pytest.mark.exhaustive,
    )
    for dtype in ("float32", "float64")
    for subject in same_training()
]


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
        seed=SEED,
        **UPDATES[update],
    )
    return Subject.of(config)


@functools.cache
def reference(model: str, update: str, dtype: str, seed: int = 0) -> dict[str, Outcome]:
    """What one device does, on every layout."""
    config = small_config(model=model, dtype=dtype, seed=seed, **UPDATES[update])
    control = Subject.of(config)
    return {name: control.run(layout) for name, layout in LAYOUTS.items()}


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
@pytest.mark.parametrize(("strategy", "replicas", "dtype"), SUBJECTS)
def test_same_training_as_one_device(
    strategy: str, replicas: int, dtype: str, model: str, update: str, layout: str
) -> None:
    expected = reference(model, update, dtype, SEED)[layout]
    outcome = subject(strategy, replicas, model, update, dtype).run(LAYOUTS[layout])
    assert np.ptp(expected.losses) > 0.1, "the reference does not learn anything"
    if update == "adamw":
        assert expected.gradient_norm > 0.1, "the reference never clips"
    assert_same_training(outcome, expected, TOLERANCES[dtype, update])
