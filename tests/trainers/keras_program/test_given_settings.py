"""Settings that a user gives: they take precedence over a program's."""

import json
import pathlib

import pytest

import trainers
from tests import processes

_PROGRAM = """
import keras
import numpy as np

{before}
x = np.random.normal(size=(48, 4))
y = x.sum(axis=1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=12, epochs=2)
print("layers", model.layers[0].compute_dtype, type(model.optimizer).__name__)
"""
_ONE_DEVICE = "--strategy=one_device"

_EMBEDDED = """
import keras
import numpy as np

keras.config.set_floatx("float64")
layers = keras.layers
x = np.random.default_rng(0).integers(5, size=(32, 10))
model = keras.Sequential(
    [layers.Input((10,)), layers.Embedding(5, 4), layers.Flatten(), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(1.0), "mse")
before = model.get_weights()
model.fit(x, x.sum(axis=1), batch_size=32)
squares = [np.sum((a - b) ** 2) for a, b in zip(before, model.get_weights())]
print("moved", np.sqrt(sum(squares)))
"""


def _script(folder: pathlib.Path, before: str = "") -> str:
    path = folder / "train.py"
    path.write_text(_PROGRAM.format(before=before))
    return str(path)


def _rate(folder: pathlib.Path) -> float:
    return float(processes.metrics_of(folder)[-1]["learning_rate"])


# The test of given epochs has a file, and test_program.py flags with default values.
@pytest.mark.exhaustive
def test_a_call_and_a_file_change_what_a_program_decides(
    tmp_path: pathlib.Path,
) -> None:
    script = _script(tmp_path)
    # The first is a default value of the flag.
    result = trainers.train(
        script=script,
        strategy="one_device",
        learning_rate=0.001,
        global_batch_size=24,
        run_dir=str(tmp_path / "called"),
    )
    assert result.result["steps"] == 4
    assert _rate(result.path) == pytest.approx(0.001)
    file = tmp_path / "settings.json"
    file.write_text(
        json.dumps(
            {"optimizer": {"learning_rate": 0.001}, "length": {"global_batch_size": 16}}
        )
    )
    run = tmp_path / "run"
    words = (f"--config={file}", f"--script={script}", _ONE_DEVICE)
    done = processes.run(*words, f"--run_dir={run}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes.result_of(run)["steps"] == 6
    assert _rate(run) == pytest.approx(0.001)


def test_a_resumed_program_is_given_the_same_settings(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    words = (f"--script={_script(tmp_path)}", _ONE_DEVICE, f"--run_dir={run}")
    given = ("--clip_global_norm=0.001", "--learning_rate=0.001", "--seed=1")
    done = processes.run(*words, *given, "--train_steps=3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    resumed = processes.run(*words, "--resume=auto", folder=tmp_path)
    assert resumed.returncode == 2
    for part in (
        "--clip_global_norm=none (was 0.001)",
        "--learning_rate=the program's (was 0.001)",
        "--seed=0 (was 1)",
    ):
        assert part in resumed.stderr
    more = (*given, "--train_steps=5", "--resume=auto")
    resumed = processes.run(*words, *more, folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert processes.result_of(run)["steps"] == 5


def test_given_epochs_are_those_of_a_program_that_is_run_again(
    tmp_path: pathlib.Path,
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    script = f"--script={_script(tmp_path)}"
    words = (
        *(script, _ONE_DEVICE, f"--run_dir={run}", "--epochs=3"),
        *("--optimizer=sgd", "--learning_rate_schedule=cosine"),
    )
    done = processes.run(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # A schedule depends on the last step, so that a resumed run needs the same.
    done = processes.run(*words, "--resume=auto", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    file = f"--config={run / 'config.json'}"
    done = processes.run(file, script, f"--run_dir={again}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = map(processes.result_of, (run, again))
    assert (first["steps"], second["steps"]) == (12, 12)
    assert first["weights_sha256"] == second["weights_sha256"]


def test_a_given_optimizer_contradicts_callbacks_that_set_the_rate(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "train.py"
    plateau = "callbacks=[keras.callbacks.ReduceLROnPlateau('loss')]"
    fit = _PROGRAM.format(before="").replace("epochs=2", f"epochs=2, {plateau}")
    path.write_text(fit)
    words = (f"--script={path}", _ONE_DEVICE, "--optimizer=adam")
    done = processes.run(*words, f"--run_dir={tmp_path / 'run'}", folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "error: --optimizer=adam replaces the optimizer of which ReduceLROnPlateau "
        "sets the learning rate: leave one of them out.\n",
    )
    assert not (tmp_path / "run").exists()


def test_a_given_type_contradicts_the_policy_of_a_program(
    tmp_path: pathlib.Path,
) -> None:
    policy = "keras.mixed_precision.set_global_policy('mixed_bfloat16')"
    words = (f"--script={_script(tmp_path, policy)}", _ONE_DEVICE)
    # The default of the flag, but given.
    refused = processes.run(*words, "--dtype=float32", folder=tmp_path)
    assert refused.returncode == 2
    assert "--dtype=float32 contradicts mixed_bfloat16" in refused.stderr
    done = processes.run(*words, f"--run_dir={tmp_path / 'run'}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "layers bfloat16" in done.stdout


def test_a_given_type_holds_after_a_program_has_cleared_the_session(
    tmp_path: pathlib.Path,
) -> None:
    words = (f"--script={_script(tmp_path, 'keras.utils.clear_session()')}",)
    done = processes.run(
        *(*words, _ONE_DEVICE, "--dtype=mixed_bfloat16"),
        f"--run_dir={tmp_path / 'run'}",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "layers bfloat16" in done.stdout


def test_a_given_clip_bounds_the_sum_of_the_rows_of_a_word(
    tmp_path: pathlib.Path,
) -> None:
    """Words occur often in a batch, and each time its gradient has a row."""
    path = tmp_path / "train.py"
    path.write_text(_EMBEDDED)
    words = (f"--script={path}", "--strategy=mirrored", "--clip_global_norm=0.05")
    done = processes.run(*words, f"--run_dir={tmp_path / 'run'}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [line] = [one for one in done.stdout.splitlines() if "moved" in one]
    # With a rate of 1, one step of SGD moves the weights by the clipped gradient.
    assert float(line.split()[1]) == pytest.approx(0.05, rel=1e-9)
