"""Checks that the wheel has one package, which works from any folder."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator

import pytest

from tests import processes
from tests.processes import result_of

NAME = "keras_strategies"
IN_A_CLONE = re.compile(r"(strategies|models|trainers|examples)(\.\w+)*")
LARGEST_BYTES = 2 << 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    done = processes.run_words([*words, f"--wheel-dir={folder}", str(processes.ROOT)])
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


def modules_of(wheel: pathlib.Path) -> Iterator[tuple[str, ast.Module]]:
    with zipfile.ZipFile(wheel) as content:
        for name in content.namelist():
            if name.endswith(".py"):
                yield name, ast.parse(content.read(name), name)


@pytest.mark.slow
def test_it_is_small_and_has_one_package_and_a_licence(wheel: pathlib.Path) -> None:
    assert wheel.stat().st_size < LARGEST_BYTES
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {NAME}
    assert f"{NAME}/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any("tests" in name or "__pycache__" in name for name in names)


@pytest.mark.slow
def test_no_module_names_what_a_user_may_have(wheel: pathlib.Path) -> None:
    """Imports and strings name no module that a user may have."""
    found = {
        f"{name}: {text}"
        for name, module in modules_of(wheel)
        for text in names_of_modules(module)
        if IN_A_CLONE.fullmatch(text)
    }
    assert not found


def names_of_modules(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The name of a package alone may be an ordinary word.
            yield node.value if "." in node.value else ""


@pytest.fixture(scope="module")
def installed(
    wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """Makes an environment with the wheel; returns the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    # pip takes seconds to be installed, and installs into other environments.
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(venv, check=True)
    programs = folder / "bin"
    # The environment uses the dependencies that are installed for the tests.
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", f"--python={programs / 'python'}"]
    # PYTHONPATH may name the clone, where building has left metadata of the package.
    install = ["install", "--ignore-installed", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    return programs


def run_installed(
    words: list[str | pathlib.Path], folder: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    return subprocess.run(
        words,
        cwd=folder,
        env={name: v for name, v in os.environ.items() if name not in hidden},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE_SECONDS,
        check=False,
    )


USERS_MODEL = """
import keras
from models import UNITS


def build():
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(UNITS)]
    model = keras.Sequential(layers)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
USERS_PROGRAM = """
import numpy as np
import strategies
import trainers
from models.base import build

print("found", strategies.UNITS + trainers.UNITS)
build().fit(np.zeros((8, 8, 8, 1)), np.zeros(8), batch_size=4)
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_packages_of_the_user_keep_their_names(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "train.py").write_text(USERS_PROGRAM)
    for name in ("models", "trainers", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("UNITS = 10\n")
    (tmp_path / "models/base.py").write_text(USERS_MODEL)
    done = run_installed(
        [
            installed / "keras-strategies",
            *("--strategy=multi_worker_mirrored", "--num_workers=1"),
            *("--model=models.base:build", "--train_steps=4", "--run_dir=run"),
            *("--eval_every_steps=none", "--set=report.histogram_every_steps=none"),
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert result_of(tmp_path / "run")["status"] == "completed"
    program = ("--script=train.py", "--strategy=one_device", "--run_dir=other")
    done = run_installed([installed / "keras-strategies", *program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "found 20\n" in done.stdout


# The Python interface below trains an example from an empty folder.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "mode",
    [(), ("--mode=verify", "--strategies=tower", "--update=sync")],
    ids=["train", "verify"],
)
def test_examples_are_found_from_an_empty_folder(
    mode: tuple[str, ...], installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    example = "examples.text_classifier"
    done = run_installed(
        [
            installed / "keras-strategies",
            *(f"--model={example}:model", f"--dataset={example}:reviews"),
            *(*mode, "--train_steps=3", "--jit_compile=off"),
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_python_api_trains_an_example(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    program = (
        f"import {NAME}\n"
        f"result = {NAME}.train(\n"
        "    model='examples.text_classifier:model',\n"
        "    dataset='examples.text_classifier:reviews',\n"
        "    strategy='mirrored', train_steps=3, eval_every_steps=None)\n"
        "print(result.status)"
    )
    done = run_installed([installed / "python", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "completed"
