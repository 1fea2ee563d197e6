"""Caveats: facts that limit the verdicts of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.text import as_argument, plural
from trainers.config.comparison import FEWEST_SEEDS, HELD_FIXED
from trainers.experiments.arms import Arm
from trainers.experiments.compare.comparisons import RunsByArm
from trainers.experiments.run_record import Run

# Fraction of the cores that other programs may use without a remark.
_MOST_OTHERS = 0.1


def remarks_on(
    by_arm: RunsByArm, differing: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Returns remarks on settings in which arms differ, on runs and on the machine."""
    remarks = []
    for name, values in differing.items():
        if name in HELD_FIXED:
            shown = ", ".join(f"{a}: {as_argument(v)}" for a, v in values.items())
            remarks.append(
                f"Arms differ in {HELD_FIXED[name]}, as "
                "--set=comparison.allow_different permits: "
                f"{name} is {shown}."
            )
    for arm, runs in by_arm.items():
        for run in runs:
            if not run.is_completed:
                why = f": {run.reason.rstrip('.')}" if run.reason else ""
                remarks.append(f"{arm} with seed {run.seed}: {run.status}{why}.")
            elif run.was_interrupted:
                remarks.append(
                    f"{arm} with seed {run.seed} was interrupted and continued: its "
                    "speed is that of its last process, and it has no times of the "
                    "whole run."
                )
            if run.is_completed and (count := run.result.get("rollbacks")):
                remarks.append(
                    f"{arm} with seed {run.seed} went back to a checkpoint {count} "
                    f"{plural('time', count)}, each time with half the learning rate: "
                    "its times have steps in them that were lost."
                )
        remarks += _remarks_on_missing_metrics(arm, runs)
    completed = {a: sum(r.is_completed for r in runs) for a, runs in by_arm.items()}
    few = [arm for arm, count in completed.items() if 0 < count < FEWEST_SEEDS]
    if few:
        remarks.append(
            f"Too few seeds to conclude: {', '.join(few)} completed fewer than "
            f"{FEWEST_SEEDS}; give a higher --seeds."
        )
    return remarks + _remarks_on_the_machine(by_arm)


def _remarks_on_missing_metrics(arm: str, runs: Sequence[Run]) -> list[str]:
    """Returns a remark on each metric that only some completed runs of an arm have."""
    figures = {run.seed: run.figures() for run in runs if run.is_completed}
    missing: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in figures.values() for name in row):
        seeds = [str(s) for s, row in figures.items() if row.get(name) is None]
        if name.startswith(("eval_", "train_loss")) and 0 < len(seeds) < len(figures):
            missing[name] = seeds
    return [
        f"{arm} has no {name} with {plural('seed', len(seeds))} {', '.join(seeds)}: "
        "its mean and its differences leave them out."
        for name, seeds in missing.items()
    ]


def remarks_on_target(by_arm: RunsByArm, accuracy: float | None) -> list[str]:
    """Returns a remark on each arm that did not reach the target in all its runs.

    There is one for all arms if no model has the metric.
    """
    if accuracy is None:
        return []
    every = [run for runs in by_arm.values() for run in runs if run.is_completed]
    if every and not any(run.curve("eval_accuracy") for run in every):
        others = sorted({name for run in every for name in run.other_metrics()})
        return [
            f"There is no time to the target accuracy {accuracy:g}, because no run has "
            f"eval_accuracy: they have {', '.join(['eval_loss', *others])}."
        ]
    remarks = []
    for arm, runs in by_arm.items():
        completed = [
            run.figures(accuracy)
            for run in runs
            if run.is_completed and not run.was_interrupted
        ]
        seconds = [found["seconds_to_target_accuracy"] for found in completed]
        if None in seconds:
            num_reached = len(seconds) - seconds.count(None)
            remarks.append(
                f"{arm} reached the target accuracy {accuracy:g} in {num_reached} of "
                f"{len(seconds)} runs; times to it are compared in these seeds alone."
            )
    return remarks


def remarks_on_batches(arms: Sequence[Arm]) -> list[str]:
    """Returns a remark on arms whose global batches differ although no setting does."""
    # The strategy itself keeps the global batches of one device; the data settings,
    # such as --sharding=file, do not.
    own = [
        arm.name
        for arm in arms
        if arm.config.strategy.traits.matches_one_device
        and not arm.config.traits.matches_one_device
    ]
    if not own:
        return []
    return [
        f"With --sharding=file the processes of {', '.join(own)} read files of their "
        "own: global batches hold other examples than those of other arms."
    ]


def _remarks_on_the_machine(by_arm: RunsByArm) -> list[str]:
    completed = [run for runs in by_arm.values() for run in runs if run.is_completed]
    remarks = []
    disturbed = [
        run
        for run in completed
        if (run.measured.get("other_busy_cores") or 0.0)
        > _MOST_OTHERS * ((run.result.get("hardware") or {}).get("cpu_cores") or 1)
    ]
    if disturbed:
        remarks.append(
            f"During {len(disturbed)} of {len(completed)} runs other programs kept "
            f"more than {_MOST_OTHERS:.0%} of the cores busy: speeds vary more than "
            "they would on an idle machine."
        )
    for part in ("versions", "hardware"):
        if any(
            run.result.get(part) != completed[0].result.get(part) for run in completed
        ):
            remarks.append(f"Not all runs had the same {part}.")
    return remarks
