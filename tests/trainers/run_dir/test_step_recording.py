"""report.record_steps: what a run keeps of every step, and that it is what happened."""

import itertools
import pathlib

import numpy as np
import pytest

from strategies.common.text import unique_names
from tests import processes
from trainers.run_dir.step_recording import RecordedStep, Recording

LEARNING_RATE = 0.5


def test_weights_change_by_the_recorded_gradients(tmp_path: pathlib.Path) -> None:
    """Includes weights of an embedding, whose gradients have only some rows."""
    result = processes.train(
        tmp_path / "run",
        *("--model=wide_embedding", "--dataset=clicks", "--set=data.num_examples=64"),
        *(
            "--set=data.num_columns=2",
            "--set=data.num_categories=20",
            "--hidden_units=4",
        ),
        *("--optimizer=sgd", f"--learning_rate={LEARNING_RATE}", "--dtype=float64"),
        *(
            "--global_batch_size=48",
            "--train_steps=3",
            "--set=report.record_steps=true",
        ),
        *("--strategy=tower", "--summary_every_steps=3", *processes.NO_EVALUATION),
    )
    recording = Recording(tmp_path / "run")
    steps = [recording.read(step) for step in (1, 2, 3)]
    assert recording.num_steps() == 3
    assert [step.examples for step in steps] == [48, 16, 48]
    mean = sum(step.loss for step in steps) / sum(step.examples for step in steps)
    assert result["final"]["train_loss"] == pytest.approx(mean, rel=1e-12)
    for before, after in itertools.pairwise(steps):
        assert set(after.gradients) == set(after.weights)
        for name, gradient in after.gradients.items():
            expected = before.weights[name] - LEARNING_RATE * gradient
            # One multiplication and one subtraction in float64.
            np.testing.assert_allclose(after.weights[name], expected, rtol=1e-14)
        assert any(gradient.any() for gradient in after.gradients.values())


def test_a_recording_reads_as_it_was_written(tmp_path: pathlib.Path) -> None:
    single = np.float32([0.1, 1e-38, 3e38])
    written = RecordedStep(
        loss=0.1,
        examples=7,
        random_layers=1,
        gradients={"a/kernel": single},
        weights={"a/kernel": single, "file": single[0]},
        layer_state={"a/count": np.int64([5])},
    )
    recording = Recording(tmp_path)
    assert recording.num_steps() == 0
    recording.write(1, written)
    read = recording.read(1)
    assert (read.loss, read.examples, read.random_layers) == (0.1, 7, 1)
    for group in ("gradients", "weights", "layer_state"):
        assert list(getattr(read, group)) == list(getattr(written, group))
        for name, values in getattr(written, group).items():
            assert np.array_equal(getattr(read, group)[name], values)


def test_variables_of_one_name_are_kept_apart() -> None:
    assert unique_names(["a", "b", "a"]) == ["a", "b", "a (2)"]
