"""Tests of the traits of a configured strategy."""

from __future__ import annotations

import pytest

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
