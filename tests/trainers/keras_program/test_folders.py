"""Folders of a run whose program changes its own."""

import pathlib

import pytest

from tests import processes
from tests.markers import further

_PROGRAM = """
import os

import keras
import numpy as np

os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
x = np.random.normal(size=(40, 4))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(axis=1), batch_size=10, epochs=2)
model.save("model.keras")
{after}
"""
_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")


@pytest.mark.parametrize("strategy", [("--strategy=one_device",), further(_WORKERS)])
def test_a_program_that_changes_its_folder_leaves_the_run_where_it_is(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM.format(after=""))
    words = ("--script=train.py", *strategy, "--run_dir=run", "--tensorboard_dir=tb")
    done = processes.run(*words, "--train_steps=4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"model.keras"}
    assert [path.name for path in (tmp_path / "tb").iterdir()] == ["run"]
    assert processes.result_of(tmp_path / "run")["steps"] == 4
    more = ("--train_steps=6", "--resume=auto")
    done = processes.run(*words, *more, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes.result_of(tmp_path / "run")["steps"] == 6


def test_a_program_that_fails_at_its_end_says_so_in_a_folder_without_a_name(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM.format(after="model.fit(x, x.sum(axis=1), batch_size=0)"))
    words = ("--script=train.py", "--strategy=one_device")
    done = processes.run(*words, folder=tmp_path)
    assert done.returncode == 2
    (run,) = (tmp_path / "runs").iterdir()
    assert processes.result_of(run)["status"] == "failed"
