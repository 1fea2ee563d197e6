"""Run folders made by hand: what a comparison reads, with figures that are known."""

import contextlib
import gc
import io
import json
import math
import pathlib
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest

from strategies import registry
from strategies.common.errors import StopRequested
from strategies.processes.starter import ProcessStarter
from trainers.cli import app
from trainers.config.config import Config
from trainers.experiments.compare import execution, report
from trainers.experiments.measurement import Measured
from trainers.experiments.tune import search
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.modes import compare as mode

SHA = "0" * 64


def make_run(
    path: pathlib.Path,
    *,
    seed: int,
    speed: float = 1000.0,
    accuracy: float = 0.9,
    eval_loss: float = 0.4,
    status: str = "completed",
    initial_weights_sha256: str = SHA,
    first_examples_sha256: str | None = None,
    evaluates: bool = True,
    communication: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    **settings: Any,
) -> pathlib.Path:
    """Writes a folder as a run of 20 steps leaves it; returns the folder."""
    config = Config().replace(
        **{"train_steps": 20, "seed": seed, "run_dir": str(path), **settings}
    )
    traits = registry.traits(config.strategy.strategy)
    milliseconds = 1e3 * config.length.global_batch_size / speed
    seconds = {"startup": 3.0, "trace": 0.5, "input": 0.1, "train": 1.0}
    result = {
        "schema_version": 1,
        "status": status,
        "steps": config.length.train_steps,
        "strategy": config.strategy.strategy,
        "traits": {"max_replicas": traits.max_replicas},
        "num_replicas": traits.max_replicas or 2,
        "cluster": None,
        "eval_examples": 359,
        "final": {
            "train_loss": 0.3,
            "eval_loss": eval_loss if evaluates else None,
            "eval_accuracy": accuracy if evaluates else None,
        },
        "throughput": {
            "examples_per_second": speed,
            "step_milliseconds": {
                "p50": milliseconds,
                "p90": 1.1 * milliseconds,
                "p99": 100.0,
                "total": milliseconds,
                "input": 0.1 * milliseconds,
                "compute": 0.8 * milliseconds,
                "rest": 0.1 * milliseconds,
            },
        },
        "seconds": {**seconds, "eval": 0.1, "checkpoint": 0.1, "summary": 0.1},
        "peak_memory_mib": {"chief-0": 700.0},
        "communication": communication,
        "staleness": None,
        "initial_weights_sha256": initial_weights_sha256,
        "first_examples_sha256": first_examples_sha256,
        "versions": {"tensorflow": "2.21.0"},
        "hardware": {"cpu_cores": 2, "gpus": []},
    }
    rows = [
        {"step": step, "train_loss": 1 / step, "step_milliseconds": {"total": 1.0}}
        for step in (10, 20)
    ] + [
        {"step": step, "eval_accuracy": part * accuracy, "seconds": now}
        for step, part, now in (
            (10, 0.5, {"trace": 0.5, "train": 0.4}),
            (20, 1.0, {"trace": 0.5, "train": 1.0}),
        )
        if evaluates
    ]
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config.to_file()))
    (path / "result.json").write_text(json.dumps(result))
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    if measured is not None:
        (path / "measured.json").write_text(json.dumps(measured))
    return path


class Compare(Protocol):
    """Function of flags that compares in the current folder."""

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]: ...


def figures_of(config: Config) -> dict[str, Any]:
    """Returns arguments of `make_run` for a run as real ones of the tests are.

    The best learning rate is 0.1, and very large ones diverge. Seeds differ. Programs
    have a rate of 0.02.
    """
    seed, rate = config.run.seed, config.optimizer.learning_rate
    if config.model.script is not None and "learning_rate" not in config.given:
        rate = 0.02
    is_slow = config.length.step_delay_milliseconds > 100
    noise = random.Random(f"{seed} {rate} {config.strategy.strategy}").gauss(0.0, 1.0)
    return {
        "seed": seed,
        "speed": (400.0 if is_slow else 6000.0) * (1 + 0.01 * noise),
        "accuracy": 0.8 + 0.05 * noise,
        "eval_loss": 0.1 + abs(math.log10(rate) + 1),
        "status": "completed" if rate < 1e20 else "diverged",
        "evaluates": config.report.evaluates,
    }


def made_of(config: Config, **figures: Any) -> Measured:
    """Writes the folder of a run as its process does; returns what was measured.

    Args:
      config: Configuration of the run.
      figures: Arguments of `make_run`.
    """
    path = make_run(pathlib.Path(config.run.run_dir or ""), **figures)
    (path / "config.json").write_text(json.dumps(config.to_file()))
    measured = Measured(
        exit_code=0,
        wall_seconds=1.0,
        peak_memory_mib=700.0,
        loopback_mib=None,
        other_busy_cores=0.0,
    )
    measured.write(path)
    return measured


@contextlib.contextmanager
def made_runs(
    folder: pathlib.Path, begins: Callable[[], None] = lambda: None
) -> Iterator[Compare]:
    """Yields a function that compares in this process, with runs made by hand.

    Args:
      folder: Current folder of the comparison.
      begins: Function that is called when a run begins.
    """

    def measure_run(
        config: Config, log: pathlib.Path, signals: PreemptionSignals, *_: object
    ) -> Measured:
        begins()
        if signals.requested:
            raise StopRequested(signals.exit_code)
        return made_of(config, **figures_of(config))

    def compare(*words: str) -> subprocess.CompletedProcess[str]:
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = app.run(["trainers.main", *words])
        # Until its lock is deleted, the folder cannot be used again.
        gc.collect()
        return subprocess.CompletedProcess(
            words, code, stdout.getvalue(), stderr.getvalue()
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # Without a template, from which no process would be forked.
        patch.setattr(mode, "starter_of", lambda _: ProcessStarter())
        # They take most of the time; test_existing_runs.py draws runs like these.
        patch.setattr(report, "charts_of", lambda *_: [])
        for module in (execution, search):
            patch.setattr(module, "measure_run", measure_run)
        yield compare


def make_arm(
    folder: pathlib.Path,
    speeds: Sequence[float],
    accuracies: Sequence[float] | None = None,
    **settings: Any,
) -> str:
    """Writes a run for each speed, with seeds 0, 1, ...; returns a value of --runs."""
    for seed, speed in enumerate(speeds):
        accuracy = 0.9 if accuracies is None else accuracies[seed]
        make_run(
            folder / f"seed-{seed}",
            seed=seed,
            speed=speed,
            accuracy=accuracy,
            **settings,
        )
    return f"{folder.name}:{folder}"
