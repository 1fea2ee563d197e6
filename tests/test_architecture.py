"""Checks that imports point in one direction and that each concern has one place."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

from strategies import registry
from strategies.base import Strategy

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("strategies", "models", "trainers")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# Separate commands, which read their few flags themselves.
TOOLS = {"trainers/cli/tool.py", "trainers/matpow.py", "trainers/write_tfrecord.py"}


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: pathlib.Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@functools.cache
def imported_modules(path: pathlib.Path, skip_typing: bool = False) -> set[str]:
    """Returns the full dotted name of everything that a file imports anywhere.

    Args:
      path: A file of Python.
      skip_typing: True to leave out imports that only type checkers see.
    """
    for_typing = {
        id(node)
        for branch in nodes_of(path)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in nodes_of(path):
        if skip_typing and id(node) in for_typing:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports_package(path: pathlib.Path, package: str) -> bool:
    return any(name.split(".")[0] == package for name in imported_modules(path))


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("models", "strategies"),
        ("models", "trainers"),
        ("strategies", "models"),
        ("strategies", "trainers"),
    ],
)
def test_lower_layers_do_not_import_higher_ones(package: str, forbidden: str) -> None:
    offenders = [
        name_of(path)
        for path in FILES
        if name_of(path).startswith(f"{package}/") and imports_package(path, forbidden)
    ]
    assert offenders == []


# A folder imports only folders of the rows above its row.
FLOORS = (
    ("models", "strategies/common", "strategies/common/private_apis"),
    ("strategies/cluster", "strategies/devices", "strategies/inner_loop"),
    ("strategies/collectives",),
    (
        *("strategies/gradient_compression", "strategies/local_sgd"),
        "strategies/processes",
    ),
    ("strategies/launcher", "strategies/ps"),
    ("strategies", "strategies/hello_cluster"),
    ("trainers/config",),
    (
        *("trainers/inputs", "trainers/run_dir"),
        *("trainers/model/optimizers", "trainers/model/random_numbers"),
    ),
    ("trainers/inputs/tfrecord", "trainers/model"),
    ("trainers/keras_program/streams", "trainers/user_code"),
    ("trainers/user_code/own_step",),
    ("trainers/pipeline_parallel",),
    ("trainers/loop",),
    (
        *("trainers/fault_tolerance", "trainers/keras_program/lent_model"),
        "trainers/reporting/tracking",
    ),
    ("trainers/reporting",),
    ("trainers/cli", "trainers/keras_program"),
    ("trainers/experiments",),
    ("trainers/experiments/explain",),
    (
        *("trainers/experiments/compare", "trainers/experiments/predict"),
        "trainers/experiments/verify",
    ),
    ("trainers/experiments/tune",),
    ("trainers/modes",),
    ("trainers",),
)


def folder_of(path: pathlib.Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


def imported_folders(path: pathlib.Path) -> set[str]:
    """Returns the folders of the modules that a file imports when it runs."""
    modules = {name_of(p).removesuffix(".py").replace("/", "."): p for p in FILES}
    found = set()
    for name in imported_modules(path, skip_typing=True):
        module = name if name in modules else name.rpartition(".")[0]
        if module in modules:
            found.add(folder_of(modules[module]))
        elif f"{name}.__init__" in modules or f"{module}.__init__" in modules:
            package = name if f"{name}.__init__" in modules else module
            found.add(package.replace(".", "/"))
    return found - {folder_of(path)}


def test_a_folder_imports_only_folders_of_the_floors_below() -> None:
    floor = {folder: level for level, row in enumerate(FLOORS) for folder in row}
    assert {folder_of(path) for path in FILES} == set(floor)
    offenders = {
        f"{name_of(path)} imports {folder}"
        for path in FILES
        for folder in imported_folders(path)
        if floor[folder] >= floor[folder_of(path)]
    }
    assert offenders == set()


def test_only_flags_reads_the_command_line() -> None:
    readers = {name_of(path) for path in FILES if imports_package(path, "absl")}
    assert readers == {"trainers/cli/arguments.py", "trainers/cli/flags.py"} | TOOLS


COLLECTIVES = (
    *("broadcast_from_chief", "barrier", "wait_until_all_are_done"),
    *("average_replica_variables", "gather_replica_state", "agree_on_step"),
    *("messages_of_all", "other_messages", "refuse_together"),
)


def test_only_the_training_program_calls_collectives() -> None:
    """A reporter that does nothing would otherwise leave the other tasks waiting."""
    callers = {
        name_of(path)
        for path in FILES
        for node in nodes_of(path)
        if path.is_relative_to(ROOT / "trainers")
        and isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in COLLECTIVES
    }
    assert callers == {
        "trainers/modes/training_run.py",
        # Every task compares its command with those of the others before that.
        "trainers/modes/same_command.py",
        # `other_messages` and `refuse_together`, for that.
        "trainers/loop/task_agreement.py",
        # `agree_on_step`, which the training program calls.
        "trainers/fault_tolerance/rollback.py",
        # Every task runs the Keras program, and gets what its callbacks change.
        "trainers/keras_program/chief_callbacks.py",
        "trainers/keras_program/calls_of_fit.py",
        "trainers/keras_program/program.py",
    }


def test_the_reporter_of_the_chief_does_what_the_other_only_names() -> None:
    def methods(module: str, name: str) -> set[str]:
        (found,) = (
            node
            for node in tree_of(ROOT / "trainers" / "reporting" / module).body
            if isinstance(node, ast.ClassDef) and node.name == name
        )
        return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}

    null = methods("null_reporter.py", "NullReporter")
    real = methods("reporter.py", "Reporter")
    assert null <= real
    assert {name for name in real if not name.startswith("_")} <= null


def test_only_summaries_writes_event_files() -> None:
    writers = {
        name_of(path)
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node).startswith("tf.summary")
    }
    assert writers == {"trainers/reporting/tensorboard.py"}


_ENDS_OF_PYTHON = ("atexit._run_exitfuncs", "threading._shutdown")


def test_private_names_of_libraries_are_in_one_place() -> None:
    """Finds every `thing._name` where thing is neither self nor cls."""
    offenders = {
        f"{name_of(path)}: {ast.unparse(node)}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and ast.unparse(node.value) not in ("self", "cls")
        # The first two are public in spite of the underscore. The others are names of
        # Python, for programs that do not load TensorFlow; they are tested in
        # tests/cluster/test_own_model.py and keras_program/test_end_of_program.py.
        and ast.unparse(node)
        not in ("os._exit", "sys._current_frames", *_ENDS_OF_PYTHON)
        and node.attr not in own_private_names(path) | {"_fields", "_replace"}
        and not name_of(path).startswith("strategies/common/private_apis/")
    }
    assert offenders == set()


def own_private_names(path: pathlib.Path) -> set[str]:
    """Returns the names that a file defines on its own classes."""
    return {
        node.attr
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    } | {node.name for node in nodes_of(path) if isinstance(node, ast.FunctionDef)}


def test_nothing_branches_on_the_name_of_a_strategy() -> None:
    """Compares no value with a strategy's name, outside that strategy's own file."""
    offenders = {
        f"{name_of(path)}: {ast.unparse(node)}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, (ast.Compare, ast.match_case))
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant)
        and constant.value in registry.names()
        and path.stem != constant.value
    }
    assert offenders == set()


# Names of functions, modules and arguments by which a file that is read can run code.
RUNS_WHAT_IT_READS = {
    *("load_model", "load_weights", "model_from_json", "from_config", "TFSMLayer"),
    *(
        "enable_unsafe_deserialization",
        "saved_model",
        "load_library",
        "load_op_library",
    ),
    *(
        "eval",
        "exec",
        "__import__",
        "marshal",
        "pickle",
        "shelve",
        "joblib",
        "dill",
        "yaml",
    ),
    *("allow_pickle", "safe_mode", "load_data"),
}
IMPORT_BY_NAME = {
    *("models/__init__.py", "strategies/registry.py", "trainers/inputs/__init__.py"),
    # These modules contain the names, or get the name from --mode.
    *("trainers/__init__.py", "trainers/main.py", "trainers/cli/app.py"),
    # Only the command line gives this name; see tests/trainers/user_code/test_names.py.
    "models/factories.py",
    # A template, and a process that waits for a template, import these in advance.
    *("strategies/processes/template_process.py", "trainers/cli/warm_start.py"),
    "trainers/modes/compare.py",
    # It imports two modules of Keras by literal names.
    "trainers/cli/tensorflow_setup.py",
}


# Modules that read Keras's own file formats, in its safe mode, and the names they use;
# see tests/fault_injection/test_malicious_files.py.
READS_KERAS_FILES = {
    "trainers/run_dir/export.py": {"load_model", "safe_mode", "load_weights"},
    # It reads arrays with pickles switched off.
    "trainers/run_dir/encoding.py": {"allow_pickle"},
    # It reads temporary files that a process of the same user has just written.
    "trainers/keras_program/sent_call.py": {
        *("load_model", "safe_mode", "enable_unsafe_deserialization", "pickle")
    },
    # It sends a program's own calls of `save` and `load` to another folder.
    "trainers/keras_program/script.py": {"saved_model"},
    # It refuses such a layer of a program, and makes none.
    "trainers/user_code/checks.py": {"TFSMLayer"},
}


def names_in(path: pathlib.Path) -> set[str]:
    """Returns every name, attribute, module and keyword argument of a file."""
    found = {part for name in imported_modules(path) for part in name.split(".")}
    for node in nodes_of(path):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            found.add(node.arg)
    return found


def test_nothing_runs_what_it_reads() -> None:
    names = {name_of(path): names_in(path) for path in FILES}
    offenders = {
        p: found & RUNS_WHAT_IT_READS - READS_KERAS_FILES.get(p, set())
        for p, found in names.items()
    }
    importers = {p for p, found in names.items() if "import_module" in found}
    assert {p: found for p, found in offenders.items() if found} == {}
    assert importers == IMPORT_BY_NAME


def test_strategies_inherit_only_from_the_contract() -> None:
    for name in registry.names():
        assert registry.load(name).__bases__ == (Strategy,), name


def test_library_code_has_no_assert_and_swallows_nothing() -> None:
    for path in FILES:
        for node in nodes_of(path):
            assert not isinstance(node, ast.Assert), f"{name_of(path)}:{node.lineno}"
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{name_of(path)}:{node.lineno}"
                only_passes = [type(s) for s in node.body] == [ast.Pass]
                assert not only_passes, f"{name_of(path)}:{node.lineno}"


def test_what_is_configured_without_tensorflow_does_not_import_it() -> None:
    light = (
        "strategies/common/fields.py",
        "strategies/base.py",
        "strategies/cluster/spec.py",
        "strategies/processes/network_isolation.py",
        "strategies/devices/parsing.py",
        "strategies/devices/config.py",
        "strategies/registry.py",
        "strategies/launcher/process.py",
        "strategies/devices/gpu.py",
        "strategies/hello_cluster/__main__.py",
        "strategies/cluster/security.py",
        "strategies/launcher/launch_config.py",
        "strategies/launcher/process.py",
        "strategies/launcher/launcher.py",
        "strategies/processes/_enter_namespace.py",
        "strategies/common/native_log.py",
        "strategies/cluster/probes.py",
        "strategies/cluster/rendezvous.py",
        "strategies/launcher/launcher.py",
        "strategies/cluster/slurm.py",
        "strategies/cluster/node_info.py",
        "strategies/launcher/process_group.py",
        "models/__init__.py",
        "models/factories.py",
        "trainers/config/user_code.py",
        "trainers/config/comparison.py",
        "trainers/config/config.py",
        "trainers/config/groups.py",
        "trainers/cli/flags.py",
        "trainers/cli/help.py",
        "trainers/inputs/cifar10_files.py",
        "trainers/matpow.py",
    )
    for name in light:
        for node in tree_of(ROOT / name).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "tensorflow" not in ast.unparse(node), name
                assert "keras" not in ast.unparse(node), name
