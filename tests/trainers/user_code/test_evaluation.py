"""The loss that a run evaluates is the one of Keras's `evaluate`."""

from __future__ import annotations

import pathlib
import re

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
