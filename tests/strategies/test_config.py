"""Tests of the traits of a configured strategy."""

from typing import Any

import pytest

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.experiments.verify.arms import is_comparable


@pytest.mark.parametrize(
    ("dtype", "matches"), [("as_is", True), ("bfloat16", False), ("float16", False)]
)
def test_rounded_gradients_are_another_training(dtype: str, matches: bool) -> None:
    """Verification still compares it."""
    settings = {"strategy": "multi_worker_mirrored", "all_reduce_dtype": dtype}
    config = Config().replace(**settings)
    assert config.strategy.traits.matches_one_device is matches
    assert is_comparable(config)


@pytest.mark.parametrize(
    ("settings", "stale"),
    [
        ({}, True),
        ({"num_replicas": 1}, False),
        ({"devices": ("cpu:1",)}, False),
        ({"devices": ("gpu:0", "gpu:1")}, True),
    ],
)
def test_a_single_asynchronous_tower_has_no_stale_gradients(
    settings: dict[str, Any], stale: bool
) -> None:
    config = Config().replace(strategy="tower", update="async", **settings)
    assert config.strategy.has_stale_gradients is stale


def test_a_sum_of_gradients_is_not_for_stages_of_one_replica() -> None:
    """It would have changed nothing."""
    with pytest.raises(UsageError, match="--strategy=model_parallel: it is for") as it:
        Config().replace(strategy="model_parallel", gradient_reduction="sum")
    assert "choose --strategy=mirrored or --strategy=multi" in str(it.value)
