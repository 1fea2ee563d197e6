"""The mutations of `mutations.py` still fit the code that they change."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from tests import processes
from tests.conformance.mutations import MUTATIONS, RESULTS, Mutation


def test_each_was_noticed_when_they_last_ran() -> None:
    recorded = json.loads((processes.ROOT / RESULTS).read_text(encoding="utf-8"))
    assert [*recorded] == [mutation.name for mutation in MUTATIONS]
    assert None not in recorded.values()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_its_file(mutation: Mutation, tmp_path: pathlib.Path) -> None:
    target = tmp_path / mutation.path
    target.parent.mkdir(parents=True)
    shutil.copy(processes.ROOT / mutation.path, target)
    mutation.apply(tmp_path)
    compile(target.read_text(encoding="utf-8"), mutation.path, "exec")
    # One test of a file may be named.
    path, _, _ = mutation.tests.partition("::")
    assert (processes.ROOT / path).is_file()
