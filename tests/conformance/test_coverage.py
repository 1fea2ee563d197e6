"""Checks that every strategy is in the conformance suite or has other tests."""

import ast
import pathlib

from strategies import registry
from tests import processes
from tests.conformance.harness import in_one_process, same_training, subjects

# Strategies that this suite does not run, each with the test that replaces it.
EXCEPTIONS = {
    "multi_worker_mirrored": "tests/cluster/test_clusters.py",
    "parameter_server": "tests/cluster/test_clusters.py",
}


# Strategies that train differently from one device, each with the test of the
# difference.
ANOTHER_TRAINING = {
    "parameter_averaging": "tests/conformance/test_parameter_averaging.py",
}


def test_every_strategy_equals_one_device_or_something_else() -> None:
    equal = {name for name, _ in same_training()}
    assert equal | set(ANOTHER_TRAINING) == set(in_one_process())
    assert not equal & set(ANOTHER_TRAINING)
    for path in ANOTHER_TRAINING.values():
        assert (processes.ROOT / path).is_file()


def test_every_strategy_is_in_the_suite_or_excused() -> None:
    covered = {name for name, _ in subjects()}
    assert covered == set(in_one_process())
    assert covered | set(EXCEPTIONS) == set(registry.names())
    assert not covered & set(EXCEPTIONS)
    for path in EXCEPTIONS.values():
        assert (processes.ROOT / path).is_file()


def test_every_class_that_calls_itself_a_strategy_is_discovered() -> None:
    """The test finds strategies in another way than discovery: by their `traits`."""
    folder = pathlib.Path(registry.__file__).parent
    declaring = {
        node.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(statement, ast.Assign)
            and any(getattr(t, "id", None) == "traits" for t in statement.targets)
            for statement in node.body
        )
    }
    assert declaring == {registry.load(name).__name__ for name in registry.names()}


def test_what_is_read_from_the_source_is_what_an_import_gives() -> None:
    for name in registry.names():
        loaded = registry.load(name)
        assert loaded.name == name
        assert loaded.traits == registry.traits(name)
        assert loaded.traits.summary
