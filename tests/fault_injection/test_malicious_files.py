"""Checks that the program does not run code in malicious models and pickles.

A fixture first reads each file in an unsafe way, to show that it does harm.
"""

import os
import pathlib
import pickle
import shutil
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.fault_injection.scenarios.tampering import LENGTH, RESUME, SMALL_RUN
from tests.processes import result_of
from trainers.main import main
from trainers.run_dir.step_recording import Recording


class Harm:
    """An object whose pickle makes a folder when it is read; exploits do worse."""

    def __init__(self, harmed: pathlib.Path):
        self._harmed = harmed

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._harmed),)


def write_lambda(path: pathlib.Path, harmed: pathlib.Path) -> None:
    """Saves a model with a layer of Python code."""
    layer = keras.layers.Lambda(
        lambda x, path: [__import__("os").makedirs(path, exist_ok=True), x][1],
        output_shape=(2,),
        arguments={"path": str(harmed)},
    )
    keras.Sequential([keras.Input((2,)), layer]).save(path)


def run_model(path: pathlib.Path) -> None:
    model = keras.saving.load_model(path, safe_mode=False, compile=False)
    model(np.zeros((1, 2), np.float32))


def write_saved_model(path: pathlib.Path, harmed: pathlib.Path) -> None:
    """Saves a graph with an operation that writes a file."""
    module = tf.Module()
    module.f = tf.function(
        lambda x: (tf.io.write_file(str(harmed / "file"), "x"), x)[1],
        input_signature=[tf.TensorSpec((None, 2))],
    )
    tf.saved_model.save(module, str(path), signatures=module.f)


def run_saved_model(path: pathlib.Path) -> None:
    tf.saved_model.load(str(path)).f(tf.zeros((1, 2)))


def write_saved_model_layer(path: pathlib.Path, harmed: pathlib.Path) -> None:
    """Saves a model with a layer that loads such a graph from a folder beside it."""
    graph = path.with_name("graph")
    write_saved_model(graph, harmed)
    layer = keras.layers.TFSMLayer(str(graph), call_endpoint="serving_default")
    inputs = keras.Input((2,))
    keras.Model(inputs, layer(inputs)).save(path)


def write_pickle(path: pathlib.Path, harmed: pathlib.Path) -> None:
    path.write_bytes(pickle.dumps(Harm(harmed)))


def run_pickle(path: pathlib.Path) -> None:
    pickle.loads(path.read_bytes())


def write_arrays(path: pathlib.Path, harmed: pathlib.Path) -> None:
    """Saves arrays of objects, which NumPy pickles."""
    arrays = {"loss": np.array([Harm(harmed)], object), "examples": np.zeros(())}
    np.savez(path, **arrays, random_layers=np.zeros(()))


def run_arrays(path: pathlib.Path) -> None:
    with np.load(path, allow_pickle=True) as arrays:
        arrays["loss"]


KINDS = {
    "lambda.keras": (write_lambda, run_model),
    "lambda.h5": (write_lambda, run_model),
    "layer.keras": (write_saved_model_layer, run_model),
    "saved_model": (write_saved_model, run_saved_model),
    "weights.pkl": (write_pickle, run_pickle),
    "arrays.npz": (write_arrays, run_arrays),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Makes a folder with every malicious file, and a run without harm."""
    folder = tmp_path_factory.mktemp("malicious")
    for name, (write, run) in KINDS.items():
        write(folder / name, folder / "harmed")
        shutil.rmtree(folder / "harmed", ignore_errors=True)
        run(folder / name)
        assert (folder / "harmed").exists(), f"{name} is not malicious"
        shutil.rmtree(folder / "harmed")
    assert main(["main", *SMALL_RUN, LENGTH, f"--run_dir={folder / 'run'}"]) == 0
    return folder


@pytest.fixture
def folder(
    place: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    """Changes into a copy of all files; fails if harm was done."""
    shutil.copytree(place, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here"
    assert not (place / "harmed").exists()


def put(source: pathlib.Path, target: pathlib.Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_not_read_as_the_only_checkpoint(
    name: str, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file replaces the checkpoint, replaces its index, and is beside it."""
    checkpoint = folder / "run/checkpoints/step-00000002"
    kept = checkpoint.rename(folder / "kept")
    for target in (checkpoint, checkpoint / "variables.index", checkpoint / name):
        if target != checkpoint:
            shutil.copytree(kept, checkpoint)
        if target.is_file() and (folder / name).is_dir():
            target.unlink()
        put(folder / name, target)
        for arguments in (RESUME, ("--mode=evaluate",)):
            assert main(["main", "--run_dir=run", *arguments]) == 2
            *warnings, line = capfd.readouterr().err.splitlines()
            assert "step-00000002 is damaged" in warnings[0]
            assert line.startswith("error: every checkpoint in run/checkpoints is dam")
        shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()


def test_none_of_them_is_read_as_a_newer_checkpoint_or_any_other_file_of_a_run(
    folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for step, name in enumerate(KINDS, start=90):
        put(folder / name, folder / f"run/checkpoints/step-{step:08d}")
    for part in ("metrics.jsonl", "result.json", "measured.json", "logs/chief-0.log"):
        put(folder / "weights.pkl", folder / "run" / part)
    put(folder / "arrays.npz", folder / "run/recording/step-00000001.npz")
    assert main(["main", "--run_dir=run", "--mode=evaluate"]) == 0
    assert main(["main", "--run_dir=run", *RESUME]) == 0
    captured = capfd.readouterr()
    assert captured.err.count(" is damaged: ") == 2 * len(KINDS)
    assert "continued at step 2" in captured.out
    assert result_of(folder / "run")["steps"] == 4
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Recording(folder / "run").read(1)


# {} stands for the name of a malicious file or folder.
FLAGS = (
    ("--config={}",),
    ("--model={}",),
    ("--model=keras:{}",),
    ("--dataset={}",),
    ("--dataset=tfrecord", "--data_path={}"),
    ("--dataset=cifar10", "--model=cifar10", "--data_path={}"),
    ("--mode=evaluate", "--run_dir={}"),
    ("--mode=compare", "--runs=a:{},b:{}"),
    ("--resume=auto", "--run_dir={}"),
    ("--mode=evaluate", "--run_dir=run", "--exported_model={}"),
)


@pytest.mark.parametrize("arguments", FLAGS, ids=" ".join)
@pytest.mark.parametrize("name", KINDS)
def test_no_flag_takes_it(
    name: str,
    arguments: tuple[str, ...],
    folder: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["main", *(word.replace("{}", name) for word in arguments)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert name in line
