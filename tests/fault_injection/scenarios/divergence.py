"""Scenarios of training that diverges."""

import functools
import math
import pathlib
import random
import re
import subprocess

from tests import processes
from tests.fault_injection.scenario import Scenario

# A step turns a weight w into (1 - rate x decay) w, so the decay determines the step at
# which float32 overflows.
_FLAGS = (
    "--model=mlp",
    "--hidden_units=8",
    "--optimizer=sgd",
    "--learning_rate=0.01",
    "--summary_every_steps=5",
    *(*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none"),
)
# The limits are high because other programs may slow a task down.
_PATIENT = (
    "--set=strategy.startup_timeout_seconds=120",
    "--set=strategy.peer_timeout_seconds=60",
)
_IN_ONE_PROCESS = (
    ("--strategy=one_device",),
    ("--strategy=tower",),
    ("--strategy=tower", "--update=async"),
    ("--strategy=mirrored",),
    ("--strategy=parameter_averaging",),
    ("--strategy=model_parallel",),
)
AVERAGING_WORKERS = (
    *("--strategy=multi_worker_mirrored", "--average=parameters"),
    *_PATIENT,
)
_WORKERS = (("--strategy=multi_worker_mirrored", *_PATIENT), AVERAGING_WORKERS)
_SERVERS = (
    ("--strategy=parameter_server", "--update=async", *_PATIENT),
    ("--strategy=parameter_server", "--update=sync", *_PATIENT),
)
_WENT_BACK = re.compile(
    r"warning: .* step (\d+): back to step (\d+), with the learning rate times (\S+) "
    r"\(rollback (\d) of 3\)\."
)
_STOPPED = re.compile(r"error: .*(?:not finite|is nan|is -?inf).* at step (\d+): .*")


def _stops(chosen: random.Random, folder: pathlib.Path) -> None:
    """Lets a run diverge, which ends with 3 and keeps the last good checkpoint."""
    strategy = chosen.choice(_IN_ONE_PROCESS)
    every = chosen.randint(3, 12)
    decay = chosen.uniform(300, 3000)
    run = folder / "run"
    flags = (f"--weight_decay={decay}", f"--checkpoint_every_steps={every}")
    ended = _train(run, *strategy, *flags, "--train_steps=500")
    assert ended.returncode == 3, f"{strategy}: exit code {ended.returncode}"
    lines = ended.stderr.splitlines()
    found = _STOPPED.fullmatch(lines[-1])
    assert found, f"{strategy}: {ended.stderr}"
    assert len(lines) == 1, f"{strategy}: {ended.stderr}"
    result = processes.result_of(run)
    assert result["status"] == "diverged", result["status"]
    assert int(found[1]) == result["steps"] + 1, f"{lines[0]}, not {result['steps']}"
    newest = result["steps"] // every * every
    assert processes.checkpoints_of(run)[-1] == f"step-{newest:08d}"
    evaluated = processes.run("--mode=evaluate", f"--run_dir={run}")
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"step {newest} " in evaluated.stdout, evaluated.stdout


def goes_back(
    strategy: tuple[str, ...], chosen: random.Random, folder: pathlib.Path
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Lets a run diverge, which completes after rollbacks of its rate.

    Returns:
      Flags of the run, and the steps of its rollbacks as `_rollbacks` returns them.
    """
    every = chosen.randint(4, 15)
    # 1 - 0.01 decay is below -2.3 and diverges. With half the rate 1 - 0.005 decay is
    # above -1, so weights stay finite, because gradients are small.
    flags = (
        f"--weight_decay={chosen.uniform(330, 380)}",
        f"--checkpoint_every_steps={every}",
        f"--seed={chosen.randrange(1000)}",
        "--on_divergence=rollback",
    )
    run = folder / "run"
    ended = _train(run, *strategy, *flags, "--train_steps=150")
    assert ended.returncode == 0, f"{strategy}: {ended.returncode} {ended.stderr}"
    rollbacks = _rollbacks(ended.stderr)
    assert 0 <= rollbacks[0][0] - 1 - rollbacks[0][1] < every, ended.stderr
    _assert_rates(run, rollbacks)
    return flags, rollbacks


def _goes_back(
    strategies: tuple[tuple[str, ...], ...],
    chosen: random.Random,
    folder: pathlib.Path,
) -> None:
    """Lets a run go back, which keeps the smaller rate when it is resumed."""
    strategy = chosen.choice(strategies)
    flags, rollbacks = goes_back(strategy, chosen, folder)
    run = folder / "run"
    if strategy in _SERVERS:
        # The chief alone has the rate here, so this case equals a single process.
        return
    again = _train(run, *strategy, *flags, "--train_steps=160", "--resume=auto")
    assert again.returncode == 0, f"{strategy}: {again.returncode} {again.stderr}"
    _assert_rates(run, rollbacks)
    assert processes.metrics_of(run)[-1]["step"] == 160


def _rollbacks(stderr: str) -> list[tuple[int, int]]:
    """Returns the step of each divergence, and the step to which the run went back.

    In rare cases a checkpoint has weights that are finite and too large for any rate;
    then the run goes back once more, further.
    """
    found = []
    for number, line in enumerate(stderr.strip().splitlines(), start=1):
        match = _WENT_BACK.fullmatch(line)
        assert match, stderr
        diverged_at, back_to, factor, count = match.groups()
        assert (float(factor), int(count)) == (0.5**number, number), stderr
        found.append((int(diverged_at), int(back_to)))
    assert found, "it did not go back"
    return found


def _assert_rates(run: pathlib.Path, rollbacks: list[tuple[int, int]]) -> None:
    """Checks the rate up to the last rollback, and the smaller rate after it."""
    rows = [row for row in processes.metrics_of(run) if "train_loss" in row]
    rates = {row["step"]: row["learning_rate"] for row in rows}
    smaller, back_to = 0.01 * 0.5 ** len(rollbacks), rollbacks[-1][1]
    assert any(at > back_to for at in rates)
    for at, rate in rates.items():
        expected = 0.01 if at <= back_to else smaller
        # The rate is stored in single precision.
        assert math.isclose(rate, expected, rel_tol=1e-6), f"{rollbacks}: {rates}"
    result = processes.result_of(run)
    assert (result["status"], result["rollbacks"]) == ("completed", len(rollbacks))


def _train(run: pathlib.Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return processes.run(*_FLAGS, *flags, f"--run_dir={run}", folder=run.parent)


def _rollback(name: str, strategies: tuple[tuple[str, ...], ...]) -> Scenario:
    return Scenario(
        name=f"divergence-rollback-{name}",
        promise="back one checkpoint with half the rate, which a resumed run keeps",
        tries=10,
        attempt=functools.partial(_goes_back, strategies),
    )


SCENARIOS = (
    Scenario(
        name="divergence-stop",
        promise="one line with the step, exit code 3, the last good checkpoint kept",
        tries=20,
        attempt=_stops,
    ),
    _rollback("one-process", _IN_ONE_PROCESS),
    _rollback("workers", _WORKERS),
    _rollback("ps", _SERVERS),
)
