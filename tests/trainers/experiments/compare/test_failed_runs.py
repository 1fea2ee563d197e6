"""--mode=compare of a program that fails with some seeds, and of refused flags."""

import json
import pathlib
import subprocess
from collections.abc import Callable

import pytest

from strategies.common.errors import ExitCode
from tests import processes
from tests.markers import further
from tests.trainers.experiments.compare.run_factory import (
    figures_of,
    made_of,
    made_runs,
)
from trainers.config.config import Config
from trainers.experiments.compare import execution
from trainers.experiments.measurement import Measured

pytestmark = pytest.mark.slow

# The warm-up has fewer epochs. Python's generator has the seed of the run.
_PROGRAM = """
import random
import keras, numpy as np

number = random.random()
rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
history = model.fit(rows, rows[:, 0], batch_size=8, epochs=5, verbose=0)
print(history.history["loss"][4])
assert number < 0.5, "a bad seed"
"""


def _measured_by_hand(config: Config, log: pathlib.Path, *_: object) -> Measured:
    """Writes a run as the program leaves it, or the log of refused flags."""
    is_refused = config.strategy.strategy == "mirrored"
    is_bad = config.run.seed == 0
    if not is_refused:
        status = "failed" if is_bad else "completed"
        made_of(config, **{**figures_of(config), "status": status})
    words = "nccl is for GPUs" if is_refused else "a bad seed" if is_bad else None
    log.write_text(f"error: {words}\n" if words else "")
    measured = Measured(
        exit_code=ExitCode.USAGE if words else ExitCode.DONE,
        wall_seconds=1.0,
        peak_memory_mib=700.0,
        loopback_mib=None,
        other_busy_cores=0.0,
    )
    folder = pathlib.Path(config.run.run_dir or "")
    folder.mkdir(parents=True, exist_ok=True)
    measured.write(folder)
    return measured


def by_hand(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    with made_runs(folder) as compare, pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "measure_run", _measured_by_hand)
        return compare(*words)


def real(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    return processes.run(*words, folder=folder)


@pytest.mark.parametrize("compare", [by_hand, further(real)])
def test_an_arm_is_given_up_for_refused_flags_and_not_for_a_failed_program(
    compare: Callable[..., subprocess.CompletedProcess[str]], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    done = compare(
        tmp_path,
        *("--mode=compare", "--script=program.py", "--run_dir=out", "--seeds=2"),
        "--arm=refused: --strategy=mirrored --set=strategy.cross_device_reduction=nccl",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    conclusion = json.loads((tmp_path / "out" / "comparison.json").read_text("utf-8"))
    runs = {arm["name"]: arm["runs"] for arm in conclusion["arms"]}
    bad, good = runs["keras"]
    assert bad["status"] == "failed"
    assert "a bad seed" in bad["reason"]
    assert good["status"] == "completed"
    tried, not_run = (run["reason"] for run in runs["refused"])
    assert "nccl" in tried
    assert not_run == f"not run: {tried}"


def test_other_initial_weights_are_refused_after_the_first_seed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(config: Config, *_: object) -> Measured:
        digest = ("1" if config.strategy.strategy == "tower" else "2") * 64
        return made_of(config, **figures_of(config), initial_weights_sha256=digest)

    with made_runs(tmp_path) as compare:
        monkeypatch.setattr(execution, "measure_run", measured)
        strategies = "--strategies=one_device,tower"
        done = compare("--mode=compare", strategies, "--seeds=3", "--run_dir=out")
    assert done.returncode == 2, done.stderr
    assert "with seed 0 one_device and tower began with different" in done.stderr
    assert len(list(tmp_path.glob("out/runs/*/*/result.json"))) == 2
