"""Programs that call fit, save and except in ways that a run has to expect."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests import processes
from tests.markers import further
from trainers.keras_program.script import run_script

_MODEL = """
import os
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 4)).astype("float32")
y = x.sum(axis=1)

def made():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

fixed = {"batch_size": 20, "shuffle": False, "verbose": 0}
model = made()
"""
_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")


def _write(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "train.py"
    path.write_text(_MODEL + textwrap.dedent(text))
    return path


_NESTED = """
class Probe(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        found = made().fit(x, y, epochs=2, **fixed)
        logs["probe"] = found.history["loss"][-1]

history = model.fit(x, y, epochs=2, callbacks=[Probe()], **fixed).history
print("found", *("%.5f" % v for values in history.values() for v in values))
"""


@pytest.mark.parametrize(
    "flags", [("--strategy=mirrored", "--num_replicas=2"), further(_WORKERS)]
)
def test_a_callback_trains_another_model_as_with_fit(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    path = _write(tmp_path, _NESTED)
    plain = processes.run_module(path.stem, folder=tmp_path)
    done = processes.run(f"--script={path}", f"--run_dir={tmp_path / 'run'}", *flags)
    assert done.returncode == 0, done.stderr
    found, expected = (
        [line for line in ended.stdout.splitlines() if line.startswith("found")]
        for ended in (done, plain)
    )
    assert len(found) == 1
    assert found == expected


def test_a_callback_that_trains_its_own_model_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    class Again(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.fit(x, y)

    try:
        model.fit(x, y, callbacks=[Again()])
    except ValueError:
        made().fit(x, y)
        print("trained")
    """
    path = _write(tmp_path, text)
    run = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*run, "--strategy=one_device")
    assert done.returncode == 2, done.stderr
    assert "the model that is being trained" in done.stderr
    # It would go on from the checkpoints of the refused one.
    assert "trained" not in done.stdout


def test_only_the_chief_writes_and_a_program_ends_once(tmp_path: pathlib.Path) -> None:
    """The others read what they have written, elsewhere."""
    text = """
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), "initial.keras")
    model.save(path)
    model = keras.saving.load_model(path)
    model.fit(x, y, **fixed)
    keras.saving.save_model(model, f"{os.getpid()}.keras")
    keras.models.save_model(model=model, filepath=f"again_{os.getpid()}.keras")
    try:
        made().fit(x, y, **fixed)
    except:
        pass
    """
    path = _write(tmp_path, text)
    run = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*run, *_WORKERS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.keras"))) == 2
    assert processes.result_of(tmp_path / "run")["steps"] == 4


@pytest.mark.parametrize(
    ("text", "flags", "is_named"),
    [
        ("os.mkdir('made')", _WORKERS, True),
        further("os.rmdir('made')", ("--strategy=one_device",), False),
        further("[].index(1)", _WORKERS, False),
    ],
)
def test_a_file_that_another_worker_has_made_is_named_as_a_cause(
    tmp_path: pathlib.Path, text: str, flags: tuple[str, ...], is_named: bool
) -> None:
    path = _write(tmp_path, f"{text}\nmodel.fit(x, y, **fixed)")
    run = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*run, *flags, folder=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "train.py, line 1" in done.stderr
    assert ("exist_ok=True" in done.stderr) == is_named


def test_backups_of_keras_have_no_effect_and_a_warning_says_so(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    backup = keras.callbacks.BackupAndRestore("backup")
    history = model.fit(x, y, epochs=2, callbacks=[backup], **fixed)
    print("found", history.epoch, os.path.exists("backup"))
    """
    path = _write(tmp_path, text)
    run = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*run, "--strategy=one_device", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "found [0, 1] False" in done.stdout
    assert done.stderr.count("BackupAndRestore") == 1
    assert "--resume=auto" in done.stderr


def test_fit_of_the_package_tf_keras_is_refused_before_it_trains(
    tmp_path: pathlib.Path,
) -> None:
    """The package here has of Keras 2 only the class, in the module that defines it."""
    package = tmp_path / "tf_keras" / "src" / "engine"
    package.mkdir(parents=True)
    (package / "training.py").write_text(
        "class Model:\n    def fit(self):\n        print('trained')\n"
    )
    (tmp_path / "tf_keras" / "__init__.py").write_text(
        "from tf_keras.src.engine.training import Model\n"
    )
    path = _write(tmp_path, "import tf_keras\ntf_keras.Model().fit()")
    flags = (f"--run_dir={tmp_path / 'run'}", "--strategy=mirrored")
    done = processes.run(f"--script={path}", *flags)
    assert done.returncode == 2, done.stdout
    assert "trained" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert "train.py, line 19: the program calls fit of Keras 2 (tf_keras)" in line


def test_an_error_in_a_package_elsewhere_names_the_line_of_the_program(
    tmp_path: pathlib.Path,
) -> None:
    """The package is in another environment, which this one sees."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "elsewhere.py").write_text("def check():\n    raise KeyError('lost')\n")
    path = _write(
        tmp_path,
        f"import sys\nsys.path.append({str(packages)!r})\nimport elsewhere\n"
        "elsewhere.check()",
    )
    flags = (f"--run_dir={tmp_path / 'run'}", "--strategy=one_device")
    done = processes.run(f"--script={path}", *flags)
    assert done.returncode == 2, done.stdout
    assert "train.py, line 21, failed (KeyError" in done.stderr


_SHOWN = """
import sys
name = __spec__ and __spec__.name
print(__name__, __package__, name, __file__, sys.path[0], sys.argv)
"""
_IMPORTED = "from .. import data\nprint(data.__name__)\n"
_SETS_ITS_PACKAGE = """
if __name__ == "__main__" and __package__ is None:
    import os
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
    import own.bin
    __package__ = "own.bin"
"""


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (_SHOWN, "{path}"),
        (_SHOWN + _SETS_ITS_PACKAGE + _IMPORTED, "{path}"),
        (_SHOWN + _IMPORTED, "-m own.bin.train"),
        (_SHOWN + "try: from .. import data\nexcept ImportError: pass", "{path}"),
    ],
)
@pytest.mark.parametrize("has_init", [True, False])
# Python ignores it.
@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_a_file_is_run_as_python_runs_it(
    tmp_path: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
    text: str,
    command: str,
    has_init: bool,
) -> None:
    """Repositories have programs that are started as scripts, and ones as modules."""
    path = tmp_path / "own" / "bin" / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tmp_path / "own" / "data.py").write_text("")
    if has_init:
        for folder in path.parents[:2]:
            (folder / "__init__.py").write_text("")
    words = [sys.executable, *command.format(path=path).split(), "--rate=1"]
    plain = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    main, paths = sys.modules["__main__"], list(sys.path)
    try:
        run_script(str(path), ["--rate=1"])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
            del sys.modules[name]
    assert capfd.readouterr().out == plain.stdout
    assert (sys.modules["__main__"], sys.path) == (main, paths)
