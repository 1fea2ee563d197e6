"""Checks that modules of a user which this project's packages hide are refused."""

import pathlib
import subprocess
import sys

import pytest

from models.name_collisions import check_names
from tests import processes
from trainers.main import main

_ROOT = pathlib.Path(__file__).parents[2]


def _write(folder: pathlib.Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(folder / "train.py")


@pytest.mark.parametrize(
    "files",
    [
        {"train": "import models", "models": ""},
        {"train": "from models import make", "models": ""},
        {"train": "from models.net import make", "models__in__net": ""},
        {"train": "import helper", "helper": "import trainers", "trainers": ""},
        {"train": "def f():\n    import strategies", "strategies": ""},
    ],
)
def test_a_hidden_module_is_refused(
    tmp_path: pathlib.Path, files: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="rename the module"):
        check_names(_write(tmp_path, **files), "--script=train.py")


@pytest.mark.parametrize(
    "files",
    [
        # No module imports the hidden module.
        {"train": "import numpy", "models": ""},
        # A user may import this project's packages.
        {"train": "import trainers"},
        # Relative imports find their own package.
        {"train": "import net", "net__in__a": "from . import models"},
        {"train": "this is no Python", "models": ""},
    ],
)
def test_other_programs_are_not_refused(
    tmp_path: pathlib.Path, files: dict[str, str]
) -> None:
    # Users often keep trained models in a folder of this name.
    (tmp_path / "models").mkdir()
    check_names(_write(tmp_path, **files), "--script=train.py")


@pytest.mark.parametrize("package", ["models", "own"])
def test_a_module_that_hides_one_from_a_package_is_refused(
    tmp_path: pathlib.Path, package: str
) -> None:
    """A program that is started as `python -m own.train`."""
    _write(tmp_path, **{f"{package}__in__train": "from . import net\nimport models"})
    (tmp_path / "models").mkdir(exist_ok=True)
    (tmp_path / "models" / "net.py").write_text("")
    with pytest.raises(ValueError, match="rename the module"):
        check_names(str(tmp_path / package / "train.py"), "--script=train.py")


def test_the_folder_of_this_project_is_not_refused() -> None:
    check_names(str(_ROOT / "setup.py"), "--script=setup.py")


@pytest.mark.parametrize("flag", ["--script={}", "--model={}:make"])
def test_a_run_names_the_file_and_the_module(
    tmp_path: pathlib.Path, flag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path, train="from models import make", models="")
    assert main(["main", flag.format(path), f"--run_dir={tmp_path / 'run'}"]) == 2
    assert f"imports models, and {tmp_path / 'models.py'}" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "exit_code"),
    [("models.py", 0), ("models/__init__.py", 0), ("strategies/__init__.py", 2)],
)
def test_the_command_finds_its_own_packages_or_refuses_the_folder(
    tmp_path: pathlib.Path, file: str, exit_code: int
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    # Not forked from a process that has imported them.
    done = subprocess.run(
        [sys.executable, "-m", "trainers.main", "--help"],
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    assert done.stderr.count("\n") == exit_code // 2
    assert (str(path) in done.stderr) == bool(exit_code)
