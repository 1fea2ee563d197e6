"""The learning rate follows the global batch, and the run says what it is."""

import math
import pathlib

import numpy as np
import pytest

from tests import processes
from tests.event_files import read_events
from trainers.config.optimizer import OptimizerConfig
from trainers.main import main
from trainers.model.optimizers.learning_rate import LearningRate, LearningRateScale


@pytest.mark.parametrize(
    ("rule", "base", "size", "peak"),
    [
        ("none", None, 256, 0.1),
        ("linear", 64, 256, 0.4),
        ("linear", 256, 64, 0.025),
        ("sqrt", 64, 256, 0.2),
        ("sqrt", 64, 128, 0.1 * math.sqrt(2)),
        ("linear", 64, 64, 0.1),
    ],
)
def test_the_peak_follows_the_rule(
    rule: str, base: int | None, size: int, peak: float
) -> None:
    config = OptimizerConfig(
        learning_rate=0.1, lr_scaling=rule, base_global_batch_size=base
    )
    assert config.peak_learning_rate(size) == pytest.approx(peak, rel=1e-12)


def test_warm_up_rises_to_the_scaled_rate() -> None:
    config = OptimizerConfig(
        learning_rate=0.1,
        lr_scaling="linear",
        base_global_batch_size=64,
        warmup_steps=4,
    )
    scale = LearningRateScale(may_change=False)
    rate = LearningRate(config, 10, global_batch_size=256, scale=scale)
    rates = [float(rate(step)) for step in range(6)]
    # Float32 has seven digits.
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rtol=1e-6)


def test_a_run_trains_with_the_scaled_rate_and_says_so(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Equal to the last bit to the run that was given that rate."""
    shared = [
        *("main", "--model=mlp", "--hidden_units=8", "--train_steps=6"),
        *("--optimizer=sgd", "--summary_every_steps=2", "--global_batch_size=128"),
        *("--set=report.histogram_every_steps=none", "--warmup_steps=4"),
        *("--jit_compile=off", *processes.NO_EVALUATION),
    ]
    scaled, plain = tmp_path / "scaled", tmp_path / "plain"
    rule = ["--lr_scaling=linear", "--base_global_batch_size=32"]
    assert main([*shared, *rule, "--learning_rate=0.0625", f"--run_dir={scaled}"]) == 0
    assert (
        "rate      0.25, after 4 steps of warm-up: 0.0625 of a global batch of 32 "
        "scaled to 128 (linear)\n"
    ) in capfd.readouterr().out
    assert main([*shared, "--learning_rate=0.25", f"--run_dir={plain}"]) == 0
    assert "\nrate " not in capfd.readouterr().out
    digests = [processes.result_of(run)["weights_sha256"] for run in (scaled, plain)]
    assert digests[0] == digests[1]
    rows = processes.metrics_of(scaled)
    logged = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert logged == [0.125, 0.25, 0.25]
    scalars = read_events(scaled / "tb" / "train").scalars("learning_rate")
    assert list(scalars.values()) == logged
