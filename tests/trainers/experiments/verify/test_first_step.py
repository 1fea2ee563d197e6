"""The first row of a verification: Keras's own loss, metrics and gradients."""

import json
import pathlib
import shutil
from typing import Any

import jsonschema
import numpy as np
import pytest

from strategies.common.errors import ExitCode
from tests import processes
from tests.trainers.experiments.verify.mutated_projects import Fault, plant, verify
from trainers.config.config import Config
from trainers.experiments.run_record import read_run
from trainers.experiments.runner import Executed
from trainers.experiments.verify.first_step import KerasFinding, judge_keras
from trainers.experiments.verify.verdict import Verdict
from trainers.modes.verify import _exit_code
from trainers.run_dir.step_recording import KerasStep, RecordedStep, Recording

pytestmark = pytest.mark.slow

SCHEMA = json.loads((processes.ROOT / "docs/verify.schema.json").read_text("utf-8"))
SHORT = ("--strategies=one_device", "--train_steps=2", "--jit_compile=off")

# As it was before: the function itself, with labels and predictions as they are, and no
# check of a few examples.
CALLED_DIRECTLY = (
    Fault(
        file="trainers/user_code/unreduced.py",
        right="return in_columns(self._loss.call, y_true, y_pred)",
        wrong="return getattr(self._loss, 'fn', self._loss.call)(y_true, y_pred)",
    ),
    Fault(
        file="trainers/user_code/independence.py",
        right="    for judge in judges:",
        wrong="    for judge in ():",
    ),
)


def keras_arm(found: dict[str, Any]) -> dict[str, Any]:
    jsonschema.validate(found, SCHEMA)
    return found["keras"]


def judged(tmp_path: pathlib.Path, figures: dict[str, float]) -> KerasFinding:
    """Compares a made-up step, whose loss is 2 and mae 0.5, with figures of Keras."""
    recording = Recording(tmp_path)
    gradients = {"kernel": np.ones(2)}
    recording.write(
        1,
        RecordedStep(
            loss=6.0,
            examples=3,
            random_layers=0,
            gradients=gradients,
            weights={},
            layer_state={},
            metrics={"mae": 0.5},
        ),
    )
    recording.write_keras(KerasStep(figures=figures, gradients=gradients))
    run = read_run(tmp_path, arm="one_device", seed=0, log=tmp_path / "none.log")
    return judge_keras(Executed(Config(), run))


def test_a_loss_that_is_another_in_keras_is_named(tmp_path: pathlib.Path) -> None:
    found = judged(tmp_path, {"loss": 2.5, "mae": 0.5})
    assert found.verdict is Verdict.DIFFERENT
    assert _exit_code(found, []) is ExitCode.DIFFERENT
    (line,) = found.explanations()
    assert line.startswith("loss of the first batch is 2 here and 2.5 in Keras: ")


def test_a_figure_that_only_keras_has_is_named(tmp_path: pathlib.Path) -> None:
    found = judged(tmp_path, {"loss": 2.0, "mae": 0.5, "auc": 0.75})
    assert found.verdict is Verdict.IDENTICAL
    assert found.figures.keys() == {"loss", "mae"}
    (line,) = found.explanations()
    assert line.endswith("lacks it: auc")


def made(model: str, dataset: str) -> tuple[str, ...]:
    return (
        f"--model=tests.trainers.user_code.factories:{model}",
        f"--dataset=tests.trainers.user_code.factories:{dataset}",
    )


@pytest.mark.parametrize(
    ("flags", "figures"),
    [
        (made("regularized", "numbers"), {"loss", "mae", "mse", "r2"}),
        pytest.param(
            (
                "--model=mlp",
                "--hidden_units=8",
                "--set=optimizer.label_smoothing=0.1",
                "--dropout=0.5",
                "--set=model.replayable_random_numbers=true",
            ),
            {"loss", "accuracy"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            made("two_in_two_out", "several"),
            {
                *("loss", "kind_loss", "size_loss", "kind_accuracy"),
                *("size_mae", "size_mean_squared_error"),
            },
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(made("summed", "numbers"), {"loss"}, marks=pytest.mark.exhaustive),
    ],
    ids=["regularized", "built in", "two outputs", "summed"],
)
def test_one_device_takes_the_step_of_keras(
    flags: tuple[str, ...], figures: set[str], tmp_path: pathlib.Path
) -> None:
    """Trains in double precision, where the tolerance has room for rounding only."""
    done, found = verify(tmp_path, *SHORT, *flags, "--dtype=float64")
    assert done.returncode == 0, done.stdout + done.stderr
    arm = keras_arm(found)
    assert arm["verdict"] in ("identical", "equivalent")
    assert set(arm["figures"]) == figures
    assert arm["gradients"] is not None
    assert "\nkeras " in done.stdout
    assert "not compared" not in done.stdout
    # Nobody reads an evaluation of this run.
    final = processes.result_of(tmp_path / "verified/runs/one_device")["final"]
    assert final["eval_loss"] is None


# Such a loss is not Keras's, as in the first test.
@pytest.mark.exhaustive
def test_a_loss_that_is_called_directly_is_found(tmp_path: pathlib.Path) -> None:
    """Labels [n] and predictions [n, 1] gave [n, n], under every strategy alike."""
    plant(tmp_path, CALLED_DIRECTLY)
    # The copy of the project has no tests.
    shutil.copy(
        processes.ROOT / "tests/trainers/user_code/factories.py",
        tmp_path / "users_own.py",
    )
    done, found = verify(
        tmp_path,
        *SHORT,
        *("--model=users_own:guide", "--dataset=users_own:numbers"),
    )
    assert done.returncode == 4, done.stdout + done.stderr
    arm = keras_arm(found)
    assert arm["verdict"] == "different"
    loss = arm["figures"]["loss"]
    assert loss["here"] != pytest.approx(loss["keras"], rel=0.01)
    assert f"keras: loss of the first batch is {loss['here']:.9g} here" in done.stdout
    assert f"and {loss['keras']:.9g} in Keras" in done.stdout
    assert "mae of the first batch" not in done.stdout
