"""Checks that the mutations of `mutations.py` fit the code that they change."""

import json
import pathlib
import shutil

import pytest

from tests import processes
from tests.conformance import mutations
from tests.conformance.mutations import MUTATIONS, RESULTS, Mutation, noticed_by


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


def _plant(condition: str, monkeypatch: pytest.MonkeyPatch) -> Mutation:
    """Makes a project of one test the copied one; returns a mutation of its value."""

    def copy(folder: pathlib.Path) -> None:
        (folder / "code_of.py").write_text("VALUE = 1\n")
        text = f"import code_of\n\ndef test_value():\n    assert {condition}\n"
        (folder / "test_code_of.py").write_text(text)

    monkeypatch.setattr(mutations, "copy_tracked_files", copy)
    change = ("VALUE = 1", "VALUE = 2")
    # The result of the test without a mutation is kept by its name.
    mutations.first_failed.cache_clear()
    return Mutation(condition, "code_of.py", (change,), "test_code_of.py")


@pytest.mark.parametrize(
    ("condition", "noticed"), [("code_of.VALUE == 1", "test_value"), ("True", None)]
)
def test_only_a_test_that_fails_with_the_mutation_alone_notices_it(
    condition: str, noticed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert noticed_by(_plant(condition, monkeypatch)) == noticed


def test_a_test_that_fails_without_the_mutation_notices_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match=r"::test_value .*without the mutation"):
        noticed_by(_plant("code_of.VALUE == 3", monkeypatch))
