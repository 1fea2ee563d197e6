"""Settings that are documented to save memory do so, in real processes."""

import pathlib
import subprocess
import sys

import pytest

from tests.processes import ROOT, train

# 1024 images of 64x64x3. The activations of a convnet are ten times the rest.
LARGE_BATCH = (
    "--model=convnet",
    "--dataset=synthetic",
    "--set=data.input_shape=64,64,3",
    "--set=data.num_examples=1024",
    "--global_batch_size=1024",
    "--set=report.eval_global_batch_size=8",
    "--set=report.histogram_every_steps=none",
    "--train_steps=1",
)


# It takes a gigabyte.
@pytest.mark.exhaustive
def test_the_peak_is_not_that_of_the_process_that_started_this_one() -> None:
    starts = """
import subprocess, sys
held = b"x" * (1 << 30)
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
    tells = (
        "from trainers.reporting.result import peak_memory_mib; "
        "print(peak_memory_mib())"
    )
    told = subprocess.run(
        [sys.executable, "-c", starts, tells],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(told.stdout) < 1000


@pytest.mark.exhaustive
def test_micro_batches_need_less_memory(tmp_path: pathlib.Path) -> None:
    """A process without activations has about a quarter of the whole batch's memory."""
    peaks, losses = [], []
    for steps in (1, 16):
        result = train(
            tmp_path / f"{steps}",
            *LARGE_BATCH,
            f"--gradient_accumulation_steps={steps}",
        )
        peaks.append(result["peak_memory_mib"]["chief-0"])
        losses.append(result["final"]["train_loss"])
    assert peaks[1] < 0.6 * peaks[0], peaks
    assert abs(losses[1] - losses[0]) < 1e-6 * losses[0]
