"""--callbacks: callbacks of Keras in a run whose model is no program."""

import pathlib

import pytest

from tests.markers import further
from tests.processes import metrics_of, result_of, run

_CALLBACKS = """
import keras

class Report(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, sorted(logs), int(self.model.optimizer.iterations))

def made():
    stop = keras.callbacks.EarlyStopping("loss", min_delta=99, patience=2)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 / (epoch + 1))
    return [Report(), stop, rate, keras.callbacks.CSVLogger("log.csv")]

def wrong():
    return ["early stopping"]
"""
_SMALL = ("--model=mlp", "--hidden_units=8", "--global_batch_size=500", "--epochs=9")


def _run(folder: pathlib.Path, *flags: str):
    (folder / "mine.py").write_text(_CALLBACKS, encoding="utf-8")
    return run(*_SMALL, *flags, "--run_dir=run", folder=folder)


@pytest.mark.parametrize(
    "strategy",
    [
        further(("--strategy=mirrored", "--num_replicas=2")),
        ("--strategy=multi_worker_mirrored", "--num_workers=2"),
    ],
)
def test_callbacks_run_at_epochs_and_stop_every_task(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    every = "--summary_every_steps=3"
    done = _run(tmp_path, "--callbacks=mine.py:made", every, *strategy)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch")]
    logs = "['accuracy', 'loss', 'val_accuracy', 'val_loss']"
    # 1,437 examples are three batches, and the third epoch is one too many.
    assert lines == [f"epoch {n} {logs} {3 * (n + 1)}" for n in range(3)]
    result = result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 9)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    rows = metrics_of(tmp_path / "run")
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates == pytest.approx([0.01 / n for n in (1, 2, 3)])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--callbacks=mine.py:wrong",), "returned a str"),
        (("--callbacks=mine.py:missing",), "has no function missing"),
        (("--callbacks=early_stopping",), "names no function"),
        (("--callbacks=mine.py:made", "--eval_every_steps=3"), "--eval_every_steps"),
    ],
)
def test_what_are_no_callbacks_is_one_line(
    tmp_path: pathlib.Path, flags: tuple[str, ...], words: str
) -> None:
    done = _run(tmp_path, "--strategy=one_device", *flags)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert words in line
    assert not (tmp_path / "run").exists()
