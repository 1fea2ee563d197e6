"""The charts of a comparison."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.compare.comparisons import RunsByArm
from trainers.experiments.drawing import COLORS, draw_ratios, drawn, plain
from trainers.experiments.run_record import Run

_PHASES = ("startup", "trace", "input", "compute", "eval", "checkpoint", "summary")


def charts_of(
    conclusion: Mapping[str, Any], runs: Sequence[Run]
) -> list[dict[str, str]]:
    """Returns title and SVG of each chart, in the order of the report.

    `conclusion` is the content of comparison.json.
    """
    names = [arm["name"] for arm in conclusion["arms"] if arm["num_completed"]]
    by_arm = {
        plain(a): [r for r in runs if r.arm == a and r.is_completed] for a in names
    }
    if not by_arm:
        return []
    speeds = [
        c
        for c in conclusion["comparisons"]
        # A single seed has no interval to draw.
        if c["metric"] == "examples_per_second" and c["interval"] is not None
    ]
    height = 1.2 + 0.35 * len(speeds)
    found = {"Speed": drawn(_draw_speeds, speeds, conclusion["control"], height=height)}
    for title, draw, height, of_an_arm in _CHARTS:
        found[title] = drawn(draw, by_arm, height=height + of_an_arm * len(by_arm))
    return [{"title": title, "svg": svg} for title, svg in found.items() if svg]


def _draw_speeds(
    figure: Figure, speeds: Sequence[Mapping[str, Any]], control: str
) -> None:
    """Draws each arm's speed relative to the control's, with its interval."""
    if speeds:
        draw_ratios(figure.subplots(), speeds)
        figure.axes[0].set_xlabel(
            f"examples per second, as a multiple of {plain(control)}"
        )


def _draw_curves(figure: Figure, runs: RunsByArm) -> None:
    """Draws train loss and accuracy, or eval loss where there is none, by step.

    The line is the mean over seeds, the band all that lies between them.
    """
    all_runs = [run for completed in runs.values() for run in completed]
    judged = "eval_accuracy"
    if not any(run.curve(judged) for run in all_runs):
        judged = "eval_loss"
    for axes, name in zip(figure.subplots(1, 2), ("train_loss", judged), strict=True):
        # More arms than colors begin again with the first.
        for color, (arm, completed) in zip(cycle(COLORS), runs.items()):
            _draw_band(axes, [run.curve(name) for run in completed], arm, color)
        axes.set_xlabel("step")
        axes.set_title(name)
    figure.axes[0].legend(frameon=False)


def _draw_band(
    axes: Axes, by_seed: Sequence[Mapping[int, float]], arm: str, color: str
) -> None:
    # Only steps that every seed has recorded can be averaged.
    steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    values = np.array([[curve[step] for step in steps] for curve in by_seed])
    if not values.size:
        axes.plot([], [], color=color, label=arm)
        return
    marker = "." if len(steps) < 20 else None
    axes.plot(steps, values.mean(0), color=color, label=arm, marker=marker)
    axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2)


def _draw_step_times(figure: Figure, runs: RunsByArm) -> None:
    """Draws percentiles of the steps of each run, as the table of arms has them."""
    axes = figure.subplots()
    for name, marker in {"p50": "o", "p90": ">", "p99": "D"}.items():
        points = _points(runs, f"step_milliseconds_{name}")
        if points:
            milliseconds, rows = zip(*points, strict=True)
            axes.scatter(milliseconds, rows, s=28, marker=marker, label=name)
    axes.set_ylim(0.5, len(runs) + 0.5)
    _name_rows(axes, runs)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a step, a mark of each kind for a run")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _points(runs: RunsByArm, metric: str) -> list[tuple[float, int]]:
    """Returns the known values of a metric, each with its row, from 1."""
    return [
        (value, row)
        for row, completed in enumerate(runs.values(), start=1)
        for run in completed
        if (value := run.figures()[metric]) is not None
    ]


def _name_rows(axes: Axes, runs: RunsByArm) -> None:
    """Names the rows 1, 2, ... by their arms, the first of which is at the top."""
    axes.set_yticks(range(1, len(runs) + 1), list(runs))
    axes.invert_yaxis()


def _draw_time(figure: Figure, runs: RunsByArm) -> None:
    """Draws the mean seconds of a run over seeds, by kind of work."""
    axes = figure.subplots()
    # An interrupted run has the seconds of its last process only, so it is left out if
    # the arm has others.
    runs = {
        arm: [run for run in each if not run.was_interrupted] or each
        for arm, each in runs.items()
    }
    rows, left = np.arange(len(runs)) + 1, np.zeros(len(runs))
    for phase, color in zip((*_PHASES, "rest"), COLORS, strict=True):
        seconds = [[_seconds(phase, run) for run in each] for each in runs.values()]
        widths = np.array([np.mean(each) for each in seconds])
        axes.barh(rows, widths, left=left, color=color, label=phase)
        # Bars are stacked: each starts where the one before it ends.
        left += widths
    _name_rows(axes, runs)
    axes.set_xlabel("seconds of a run")
    axes.legend(frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.35))


def _seconds(phase: str, run: Run) -> float:
    """Returns the seconds that a run spent on a kind of work.

    `compute` is training without its input; `rest` is time that the run did not
    measure.
    """
    seconds = {name: float(s or 0) for name, s in run.result["seconds"].items()}
    if phase == "compute":
        return max(seconds.get("train", 0.0) - seconds.get("input", 0.0), 0.0)
    if phase == "rest":
        # `train` includes `input`, which would count twice.
        timed = sum(seconds.values()) - seconds.get("input", 0.0)
        wall = run.figures()["wall_seconds"]
        return 0.0 if wall is None else max(wall - timed, 0.0)
    return seconds.get(phase, 0.0)


def _draw_memory(figure: Figure, runs: RunsByArm) -> None:
    """Draws the peak memory of all tasks of a run together, with one dot per run."""
    axes = figure.subplots()
    points = _points(runs, "peak_memory_mib")
    for row in dict.fromkeys(row for _, row in points):
        mean = np.mean([peak for peak, other in points if other == row])
        axes.barh(row, mean, color=COLORS[0], alpha=0.4)
    for peak, row in points:
        axes.plot(peak, row, "o", color=COLORS[0], markersize=4)
    _name_rows(axes, runs)
    axes.set_xlim(left=0)
    axes.set_xlabel("MiB")


def _draw_staleness(figure: Figure, runs: RunsByArm) -> None:
    """Draws how often each staleness occurred; nothing if all arms are synchronous."""
    counts = {arm: found for arm, each in runs.items() if (found := _staleness(each))}
    if not counts:
        return
    axes = figure.subplots()
    width = 1 / (len(counts) + 1)
    for index, (arm, found) in enumerate(counts.items()):
        # The bars of all arms at one staleness are centered on it.
        shift = (index - len(counts) / 2 + 0.5) * width
        axes.bar(
            [key + shift for key in found],
            [count / found.total() for count in found.values()],
            0.9 * width,
            label=arm,
            color=COLORS[index % len(COLORS)],
        )
    axes.set_xlabel("other updates between reading the weights and changing them")
    axes.set_ylabel("share of updates")
    axes.legend(frameon=False)


def _staleness(runs: Sequence[Run]) -> Counter[int]:
    """Returns the number of updates by their staleness."""
    found: Counter[int] = Counter()
    for run in runs:
        histogram = (run.result.get("staleness") or {}).get("histogram") or {}
        found.update({int(key): count for key, count in histogram.items()})
    return found


# Title, function, and height in inches: without the arms, and of each.
_CHARTS = (
    ("Curves (mean over seeds; the band is all seeds)", _draw_curves, 3.2, 0.0),
    ("Step times", _draw_step_times, 1.4, 0.5),
    ("Where the time went", _draw_time, 1.4, 0.45),
    ("Peak memory of all tasks together", _draw_memory, 1.0, 0.35),
    ("Staleness of asynchronous updates", _draw_staleness, 2.6, 0.0),
)
