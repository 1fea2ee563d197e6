"""Reasons for which an arm is slower than another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from trainers.experiments.explain.breakdown import PHASES, read_breakdown
from trainers.experiments.run_record import Run

# Kinds in result.json, of which train includes input, and their names for people.
_OUTSIDE_OF_STEPS = {kind: PHASES[kind] for kind in ("summary", "eval", "checkpoint")}
_KINDS = {"input": "input", "rest": "training without input", **_OUTSIDE_OF_STEPS}
# Keras's `fit` does not know its input from the rest.
_WITHOUT_INPUT = {"train": "training", **_OUTSIDE_OF_STEPS}


def slower_arms(
    conclusion: Mapping[str, Any], runs: Sequence[Run]
) -> list[dict[str, Any]]:
    """Returns each arm that is slower than the control, with milliseconds a step.

    Slower is what the verdict on its speed says. The seconds of an interrupted run do
    not cover all its steps. `conclusion` is the content of comparison.json.
    """
    control = conclusion["control"]
    found = []
    for comparison in conclusion["comparisons"]:
        name = comparison["arm"]
        if not _is_slower(comparison):
            continue
        own, other = (
            [
                _milliseconds(run)
                for run in runs
                if run.arm == arm and run.is_completed and not run.was_interrupted
            ]
            for arm in (name, control)
        )
        if not (own and other):
            continue
        # Phases within steps only if all runs have them.
        by_phase = [phases for _, phases in (*own, *other)]
        kind = 1 if all(by_phase) else 0
        names = PHASES if kind else _KINDS
        if not kind and not all(run["input"] for run, _ in (*own, *other)):
            names = _WITHOUT_INPUT
        means = [
            {k: float(np.mean([run[kind][k] for run in arm])) for k in names}
            for arm in (own, other)
        ]
        rows = [(names[k], means[0][k], means[1][k]) for k in names]
        most = max(rows, key=lambda row: row[1] - row[2])
        found.append({"arm": name, "rows": rows, "most": most[0]})
    return found


def _is_slower(comparison: Mapping[str, Any]) -> bool:
    return (
        comparison["metric"] == "examples_per_second"
        and comparison["verdict"]["kind"] == "different"
        and comparison["estimate"] < 1
    )


def _milliseconds(run: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the milliseconds of a step by kind, and by phase if there are any."""
    seconds, steps = run.result["seconds"], max(run.result.get("steps") or 1, 1)
    rest = seconds["train"] - seconds["input"]
    by_kind = {k: 1e3 * s / steps for k, s in {**seconds, "rest": rest}.items()}
    try:
        replicas = read_breakdown(run.path).replicas
    # A run without the setting, or one of a few steps.
    except (UsageError, OSError, ValueError):
        return by_kind, {}
    return by_kind, {
        phase: 1e3
        * float(np.mean([r.seconds[phase] / r.task["num_steps"] for r in replicas]))
        for phase in PHASES
    }
