"""The loss that a run evaluates is the one of Keras's `evaluate`."""

import pathlib
import re

import keras
import pytest

from tests.markers import further
from tests.processes import run, train
from tests.trainers.user_code import factories

DATASET = "--dataset=tests.trainers.user_code.factories:numbers_twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    ["regularized", further("guide"), further("column"), further("summed")],
)
def test_it_is_that_of_the_exported_model(model: str, tmp_path: pathlib.Path) -> None:
    """Labels are [n], predictions [n, 1]; weights and activations have penalties."""
    flag = f"--model=tests.trainers.user_code.factories:{model}"
    run_folder = tmp_path / "run"
    short = ("--train_steps=3", "--jit_compile=off")
    result = train(run_folder, flag, DATASET, *short, "--export=keras")
    in_keras = getattr(factories, model)()
    in_keras.load_weights(run_folder / "export/last.keras")
    _, (features, labels) = factories.numbers_twice()
    expected = in_keras.evaluate(
        features, labels, batch_size=20, verbose=0, return_dict=True
    )
    # Rounding of sums of 20 numbers in another order.
    assert result["final"]["eval_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    done = run("--mode=evaluate", f"--run_dir={run_folder}", flag, DATASET)
    assert done.returncode == 0, done.stderr
    (loss,) = re.findall(r" loss ([\d.]+)", done.stdout)
    # It is printed with four digits after the point.
    assert float(loss) == pytest.approx(expected["loss"], abs=1e-4)


_PROJECT = """
import keras, numpy as np

def model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def data():
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return (rows, rows[:, :1]), (rows, rows[:, :1])

def callbacks():
    return [keras.callbacks.TerminateOnNaN()]
"""


def test_a_run_is_evaluated_from_another_folder_and_without_files_of_its_training(
    tmp_path: pathlib.Path,
) -> None:
    """Callbacks are not called, and the checkpoint replaces the initial weights."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text(_PROJECT, encoding="utf-8")
    weights = project / "first.weights.h5"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).save_weights(weights)
    own = ("--model=mine.py:model", "--dataset=mine.py:data")
    given = (*own, "--callbacks=mine.py:callbacks", f"--initial_weights={weights}")
    short = ("--run_dir=run", "--epochs=1", "--jit_compile=off")
    done = run(*given, *short, folder=project)
    assert done.returncode == 0, done.stderr
    weights.unlink()
    place = ("--mode=evaluate", "--run_dir=project/run")
    moved = [flag.replace("=", "=project/") for flag in own]
    done = run(*place, *moved, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    in_file = "--config=project/run/config.json"
    done = run(in_file, *place, *moved, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    other = moved[0].replace(":model", ":callbacks")
    done = run(*place, other, moved[1], folder=tmp_path)
    assert done.returncode == 2
    assert "was trained with --model=mine.py:model" in done.stderr
