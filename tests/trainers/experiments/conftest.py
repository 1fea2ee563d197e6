"""Fixture of the tests that compare."""

import functools
import pathlib
from collections.abc import Iterator

import pytest

from tests import processes
from tests.markers import further
from tests.trainers.experiments.compare.run_factory import Compare, made_runs


@pytest.fixture(params=["made", further("real")])
def compare(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[Compare]:
    """Yields a function that compares in a new folder, with made runs or real ones."""
    if request.param == "real":
        yield functools.partial(processes.run, folder=tmp_path)
        return
    with made_runs(tmp_path) as compare:
        yield compare
