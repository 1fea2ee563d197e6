"""The charts of a report, as SVG with real text."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from trainers.experiments.run_record import Run

# Okabe and Ito's palette, which color-blind readers can distinguish too.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    "#000000",
)
# What matplotlib draws axes and text with. Text has no colour at all in its SVG, and
# so that of the page's style.
_INK = "#000000"
_WIDTH_INCHES = 9.0
# Largest ratio of the ends of a linear axis; a logarithmic one is used beyond it.
_MOST_ON_A_LINEAR_AXIS = 4
_PHASES = ("startup", "trace", "input", "compute", "eval", "checkpoint", "summary")

RunsByArm = Mapping[str, Sequence[Run]]


def drawn(draw: Callable[..., None], *content: Any, height: float) -> str:
    """Draws a figure and returns its SVG, identical for identical content."""
    settings: dict[Any, Any] = {
        # Text stays text, which can be searched.
        "svg.fonttype": "none",
        # Without it, Matplotlib derives ids of elements from random numbers.
        "svg.hashsalt": "comparison",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(settings):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        draw(figure, *content)
        text = io.StringIO()
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None},
        )
    # Without the declaration of a file of its own, it can stand in a page; its ink is
    # that of the page, dark or light.
    drawing = "<svg" + text.getvalue().partition("<svg")[2]
    return drawing.replace(_INK, "currentColor")


def ratios(comparisons: Sequence[Mapping[str, Any]], control: str) -> str:
    """Draws each arm's speed relative to the control's, with its 95 % interval."""
    shown = [c for c in comparisons if c["interval"] is not None]

    def draw(figure: Figure) -> None:
        draw_ratios(figure.subplots(), shown)
        figure.axes[0].set_xlabel(f"examples per second, as a multiple of {control}")

    return drawn(draw, height=1.2 + 0.35 * len(shown))


def draw_ratios(axes: Axes, shown: Sequence[Mapping[str, Any]]) -> None:
    """Draws ratios to the control with their intervals, a row for each arm."""
    for row, comparison in enumerate(shown):
        (low, high), middle = comparison["interval"], comparison["estimate"]
        axes.plot([low, high], [row, row], color=COLOURS[0], linewidth=2)
        axes.plot([middle], [row], "o", color=COLOURS[0])
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_yticks(range(len(shown)), [c["arm"] for c in shown])
    # The first arm is at the top.
    axes.set_ylim(len(shown) - 0.5, -0.5)
    ends = [1.0, *(end for c in shown for end in c["interval"])]
    if max(ends) > _MOST_ON_A_LINEAR_AXIS * min(ends):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}x")


def curves(runs: RunsByArm) -> str:
    """Draws train loss and accuracy, or eval loss where there is none, by step.

    The line is the mean over seeds, the band all that lies between them.
    """
    return drawn(_draw_curves, runs, height=3.2)


def _draw_curves(figure: Figure, runs: RunsByArm) -> None:
    all_runs = [run for completed in runs.values() for run in completed]
    judged = "eval_accuracy"
    if not any(run.curve(judged) for run in all_runs):
        judged = "eval_loss"
    for axes, name in zip(figure.subplots(1, 2), ("train_loss", judged), strict=True):
        for colour, (arm, completed) in zip(_cycle(runs), runs.items(), strict=True):
            _draw_band(axes, [run.curve(name) for run in completed], arm, colour)
        axes.set_xlabel("step")
        axes.set_title(name)
    figure.axes[0].legend(frameon=False)


def _draw_band(
    axes: Axes, by_seed: Sequence[Mapping[int, float]], arm: str, colour: str
) -> None:
    # Only steps that every seed has recorded can be averaged.
    steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    values = np.array([[curve[step] for step in steps] for curve in by_seed])
    if not values.size:
        axes.plot([], [], color=colour, label=arm)
        return
    marker = "." if len(steps) < 20 else None
    axes.plot(steps, values.mean(0), color=colour, label=arm, marker=marker)
    axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2)


def step_times(runs: RunsByArm) -> str:
    """Draws step times: boxes over lines of metrics, percentiles of single steps."""
    return drawn(_draw_step_times, runs, height=1.4 + 0.5 * len(runs))


def _draw_step_times(figure: Figure, runs: RunsByArm) -> None:
    axes = figure.subplots()
    boxes = [
        [value for run in completed for value in run.step_milliseconds()]
        for completed in runs.values()
    ]
    axes.boxplot(boxes, orientation="horizontal", showfliers=False, widths=0.5)
    markers = {"p50": "|", "p90": ">", "p99": "D"}
    for name, marker in markers.items():
        points = [
            (figure_, row + 1)
            for row, completed in enumerate(runs.values())
            for run in completed
            if (figure_ := run.figures(None)[f"step_milliseconds_{name}"]) is not None
        ]
        if points:
            milliseconds, rows = zip(*points, strict=True)
            axes.scatter(milliseconds, rows, s=28, marker=marker, label=name)
    axes.set_yticks(range(1, len(runs) + 1), list(runs))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a step")
    axes.legend(frameon=False, ncols=3)


def where_time_went(runs: RunsByArm) -> str:
    """Draws the mean seconds of a run over seeds, by kind of work."""
    return drawn(_draw_time, runs, height=1.4 + 0.45 * len(runs))


def _draw_time(figure: Figure, runs: RunsByArm) -> None:
    axes = figure.subplots()
    left = np.zeros(len(runs))
    for phase, colour in zip((*_PHASES, "rest"), COLOURS, strict=True):
        widths = np.array([_mean_seconds(phase, each) for each in runs.values()])
        axes.barh(list(runs), widths, left=left, color=colour, label=phase)
        # Bars are stacked: each starts where the one before it ends.
        left += widths
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a run")
    axes.legend(frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.35))


def _mean_seconds(phase: str, runs: Sequence[Run]) -> float:
    found = [_seconds(phase, run) for run in runs]
    return float(np.mean(found)) if found else 0.0


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
        wall = run.figures(None)["wall_seconds"]
        return 0.0 if wall is None else max(wall - timed, 0.0)
    return seconds.get(phase, 0.0)


def memory(runs: RunsByArm) -> str:
    """Draws the peak memory of all tasks of a run together, with one dot per run."""
    return drawn(_draw_memory, runs, height=1.0 + 0.35 * len(runs))


def _draw_memory(figure: Figure, runs: RunsByArm) -> None:
    axes = figure.subplots()
    for row, completed in enumerate(runs.values()):
        peaks = [run.figures(None)["peak_memory_mib"] for run in completed]
        known = [peak for peak in peaks if peak is not None]
        if known:
            axes.barh(row, np.mean(known), color=COLOURS[0], alpha=0.4)
            axes.plot(known, [row] * len(known), "o", color=COLOURS[0], markersize=4)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("MiB")


def staleness(runs: RunsByArm) -> str | None:
    """Draws how often each staleness occurred; None if all arms are synchronous."""
    counts = {arm: _staleness(completed) for arm, completed in runs.items()}
    shown = {arm: found for arm, found in counts.items() if found}
    if not shown:
        return None
    return drawn(_draw_staleness, shown, height=2.6)


def _draw_staleness(figure: Figure, counts: Mapping[str, Mapping[int, int]]) -> None:
    axes = figure.subplots()
    for index, (arm, found) in enumerate(counts.items()):
        total = sum(found.values())
        width = 1 / (len(counts) + 1)
        # The bars of all arms at one staleness are centered on it.
        shift = (index - len(counts) / 2 + 0.5) * width
        axes.bar(
            [key + shift for key in found],
            [count / total for count in found.values()],
            0.9 * width,
            label=arm,
            color=COLOURS[index % len(COLOURS)],
        )
    axes.set_xlabel("other updates between reading the weights and changing them")
    axes.set_ylabel("share of updates")
    axes.legend(frameon=False)


def _staleness(runs: Sequence[Run]) -> dict[int, int]:
    found: dict[int, int] = {}
    for run in runs:
        histogram = (run.result.get("staleness") or {}).get("histogram") or {}
        for key, count in histogram.items():
            found[int(key)] = found.get(int(key), 0) + count
    return found


def _cycle(runs: RunsByArm) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]
