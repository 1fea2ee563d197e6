"""Run folders made by hand: what a comparison reads, with figures that are known."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from strategies import registry
from trainers.config.config import Config

SHA = "0" * 64


def make_run(
    path: pathlib.Path,
    *,
    seed: int,
    speed: float = 1000.0,
    accuracy: float = 0.9,
    status: str = "completed",
    initial_weights_sha256: str = SHA,
    first_examples_sha256: str | None = None,
    measured: dict[str, Any] | None = None,
    **settings: Any,
) -> pathlib.Path:
    """Writes a folder as a run of 20 steps leaves it; returns the folder."""
    config = Config().replace(
        **{"train_steps": 20, "seed": seed, "run_dir": str(path), **settings}
    )
    traits = registry.traits(config.strategy.strategy)
    seconds = {"startup": 3.0, "trace": 0.5, "input": 0.1, "train": 1.0}
    result = {
        "schema_version": 1,
        "status": status,
        "strategy": config.strategy.strategy,
        "traits": {"max_replicas": traits.max_replicas},
        "num_replicas": traits.max_replicas or 2,
        "cluster": None,
        "final": {"train_loss": 0.3, "eval_loss": 0.4, "eval_accuracy": accuracy},
        "throughput": {
            "examples_per_second": speed,
            "step_milliseconds": {
                "p50": 64e3 / speed,
                "p90": 7e4 / speed,
                "p99": 100.0,
            },
        },
        "seconds": {**seconds, "eval": 0.1, "checkpoint": 0.1, "summary": 0.1},
        "peak_memory_mib": {"chief-0": 700.0},
        "communication": None,
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
    ]
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config.to_file()))
    (path / "result.json").write_text(json.dumps(result))
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    if measured is not None:
        (path / "measured.json").write_text(json.dumps(measured))
    return path


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
