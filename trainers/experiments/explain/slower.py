"""Reasons for which an arm is slower than another one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from trainers.experiments.explain.breakdown import PHASES, WITHIN_A_STEP, read_breakdown
from trainers.experiments.run_record import PARTS_OF_A_STEP, Run

_PHASES_OF_COMPUTE = [phase for phase in WITHIN_A_STEP if phase != "input"]
# The last batch of an epoch may be smaller.
_SAME_BATCHES = 1.05


def slower_arms(
    conclusion: Mapping[str, Any], runs: Sequence[Run]
) -> list[dict[str, Any]]:
    """Returns each arm that is slower than the control, with the time of a step.

    Slower is what the verdict on its speed says. The times are of the steps of that
    speed, which no work between steps is in, and times of an example if batches differ.
    `conclusion` is the content of comparison.json.
    """
    control = conclusion["control"]
    found = []
    for comparison in conclusion["comparisons"]:
        name = comparison["arm"]
        if not _is_slower(comparison):
            continue
        own, other = (
            [run for run in runs if run.arm == arm and run.is_completed]
            for arm in (name, control)
        )
        times, unit = _times([*own, *other])
        if not times:
            continue
        ours, theirs = times[: len(own)], times[len(own) :]
        rows = [
            (
                kind,
                float(np.mean([time[kind] for time in ours])),
                float(np.mean([time[kind] for time in theirs])),
            )
            for kind in times[0]
        ]
        most = max(rows, key=lambda row: row[1] - row[2])
        found.append({"arm": name, "unit": unit, "rows": rows, "most": most[0]})
    return found


def _is_slower(comparison: Mapping[str, Any]) -> bool:
    return (
        comparison["metric"] == "examples_per_second"
        and comparison["verdict"]["kind"] == "different"
        and comparison["estimate"] < 1
    )


def _times(runs: Sequence[Run]) -> tuple[list[dict[str, float]], str]:
    """Returns the time of a step of each run by kind, and its unit.

    There is none unless all runs know their input from the rest: the `fit` of Keras
    does not, and neither do results of earlier versions.
    """
    parts, num_examples = [], []
    for run in runs:
        figures = run.figures()
        speed = figures["examples_per_second"]
        part = {k: figures[f"step_milliseconds_{k}"] or 0.0 for k in PARTS_OF_A_STEP}
        if not (speed and part["input"] and part["total"]):
            return [], ""
        parts.append(part)
        num_examples.append(1e-3 * part["total"] * speed)
    unit, factors = "milliseconds a step", [1.0] * len(runs)
    if max(num_examples) > _SAME_BATCHES * min(num_examples):
        unit, factors = "microseconds an example", [1e3 / n for n in num_examples]
    shares = [_shares_of_compute(run) for run in runs]
    if not all(shares):
        # Phases only if all runs have them.
        shares = [{"steps without input": 1.0} for _ in runs]
    return [
        {
            PHASES["input"]: factor * part["input"],
            **{name: factor * part["compute"] * s for name, s in share.items()},
            PHASES["python"]: factor * part["rest"],
        }
        for part, factor, share in zip(parts, factors, shares, strict=True)
    ], unit


def _shares_of_compute(run: Run) -> dict[str, float]:
    """Returns shares of the time of steps without input by phase, if they are known."""
    try:
        replicas = read_breakdown(run.path).replicas
    # A run without the setting, of a few steps, or of an earlier version.
    except (UsageError, OSError, ValueError, KeyError):
        return {}
    seconds = {
        PHASES[phase]: sum(replica.seconds[phase] for replica in replicas)
        for phase in _PHASES_OF_COMPUTE
    }
    total = sum(seconds.values()) or 1.0
    return {name: part / total for name, part in seconds.items()}
