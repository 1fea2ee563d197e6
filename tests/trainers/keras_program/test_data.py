"""Data of `fit` that are refused in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.common.errors import UsageError
from trainers.keras_program.data import data_of_fit
from trainers.keras_program.fit_arguments import FitArguments

X, Y = np.ones((8, 2), np.float32), np.zeros(8, np.int64)


@pytest.mark.parametrize("x", [None, [], {}], ids=str)
def test_a_fit_without_data_is_refused(x: Any) -> None:
    with pytest.raises(UsageError, match="no training data: give x"):
        data_of_fit(FitArguments(x=x, y=Y), 0)


@pytest.mark.parametrize("given", [(), (X, Y, Y, Y)], ids=len)
def test_validation_data_of_other_parts_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=f"of {len(given)} parts: give"):
        data_of_fit(FitArguments(x=X, y=Y, validation_data=given), 0)
