"""Checks that the mutations of `mutations.py` fit the code that they change."""

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


def test_the_tests_that_noticed_still_exist() -> None:
    recorded = json.loads((processes.ROOT / RESULTS).read_text(encoding="utf-8"))
    for mutation in MUTATIONS:
        source = (processes.ROOT / mutation.tests.partition("::")[0]).read_text("utf-8")
        name = recorded[mutation.name].partition("[")[0]
        assert f"def {name}(" in source, f"{mutation.name}: {mutation.tests}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_its_file(mutation: Mutation, tmp_path: pathlib.Path) -> None:
    target = tmp_path / mutation.path
    target.parent.mkdir(parents=True)
    shutil.copy(processes.ROOT / mutation.path, target)
    mutation.apply(tmp_path)
    compile(target.read_text(encoding="utf-8"), mutation.path, "exec")
    path, _, name = mutation.tests.partition("::")
    # A test with parameters may be named with some of them.
    function = name.partition("[")[0]
    assert f"def {function}" in (processes.ROOT / path).read_text(encoding="utf-8")
