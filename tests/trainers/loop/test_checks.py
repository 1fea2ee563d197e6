"""Checks that settings, strategy, data and model fit together."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from strategies.common.errors import UsageError
from trainers.loop.checks import check_overwritten, check_shardable


def test_an_optimizer_of_other_weights_is_not_divided() -> None:
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    objective: Any = None
    check_shardable(optimizer, model, objective, keeps_rows=False)
    model.layers[0].trainable = False
    with pytest.raises(UsageError, match="Adam that was built for other weights"):
        check_shardable(optimizer, model, objective, keeps_rows=False)


def test_largest_values_of_a_batch_are_not_added_up() -> None:
    dense = keras.layers.Dense(3, dtype="float8_from_mixed_bfloat16")
    model = keras.Sequential([keras.Input((2,)), dense])
    check_overwritten(model, num_parts=1)
    with pytest.raises(UsageError, match=r"inputs_scale' gets .* which 2 parts"):
        check_overwritten(model, num_parts=2)
