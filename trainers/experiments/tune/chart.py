"""The section of a report about the search, with its chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.compare.charts import (
    COLOURS,
    MOST_ON_A_LINEAR_AXIS,
    drawn,
)
from trainers.experiments.compare.report import Section
from trainers.experiments.tune.report_part import words_of_arms, words_of_differences


def section_of(tuning: Mapping[str, Any]) -> Section:
    """Returns the section of a report.

    Args:
      tuning: `tuning` of comparison.json.
    """
    steps = tuning["steps"]
    return Section(
        title=f"Search of {tuning['setting']}",
        lines=[*words_of_arms(tuning), *words_of_differences(tuning)],
        note=(
            f"The search took {steps['search']:,} steps, "
            f"{100 * steps['search'] / steps['grid']:.3g} % of whole runs of all "
            f"values ({steps['with_given_values']:,} with the runs of the given "
            f"values). All its runs have seed {tuning['seed']}, which no run of the "
            "comparison has; the verdicts are from the runs of the comparison alone. "
            "The longer the runs, the stronger the line."
        ),
        svg=loss_by_value(tuning),
    )


def loss_by_value(tuning: Mapping[str, Any]) -> str:
    """Draws the losses of the search; the longer the runs, the stronger the line.

    Args:
      tuning: `tuning` of comparison.json.
    """
    return drawn(_draw, tuning, height=3.4)


def _draw(figure: Figure, tuning: Mapping[str, Any]) -> None:
    axes = figure.subplots()
    for index, arm in enumerate(tuning["arms"]):
        _draw_arm(axes, tuning, arm, COLOURS[index % len(COLOURS)])
    axes.plot([], [], "*", color="grey", label="tuned")
    axes.plot([], [], "o", color="grey", markerfacecolor="none", label="as given")
    axes.plot([], [], "x", color="grey", label="did not complete")
    if tuning["is_logarithmic"]:
        axes.set_xscale("log")
    losses = [
        run["loss"]
        for arm in tuning["arms"]
        for trial in arm["trials"]
        for run in trial["runs"]
        if run["loss"] is not None
    ]
    if min(losses) > 0 and max(losses) > MOST_ON_A_LINEAR_AXIS * min(losses):
        axes.set_yscale("log")
    axes.set_xlabel(tuning["setting"])
    axes.set_ylabel("loss at the end of a run")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_arm(
    axes: Axes, tuning: Mapping[str, Any], arm: Mapping[str, Any], colour: str
) -> None:
    rungs = tuning["rungs"]
    for index, rung in enumerate(rungs):
        steps, is_last = rung["steps"], index == len(rungs) - 1
        points = [
            (trial["value"], run["loss"])
            for trial in arm["trials"]
            for run in trial["runs"]
            if run["steps"] == steps and run["loss"] is not None
        ]
        style: dict[str, Any] = {"color": colour, "marker": "."}
        style["alpha"] = (index + 1) / len(rungs)
        label = arm["name"] if is_last else None
        axes.plot(*zip(*points, strict=True), **style, label=label)
        axes.annotate(
            f"{steps:,} steps",
            max(points),
            xytext=(6, 3),
            textcoords="offset points",
            fontsize="x-small",
            color=colour,
        )
    failed = [
        trial["value"]
        for trial in arm["trials"]
        if any(run["loss"] is None for run in trial["runs"])
    ]
    # At the lower edge, because there is no loss.
    edge = axes.get_xaxis_transform()
    axes.plot(failed, [0.02] * len(failed), "x", color=colour, transform=edge)
    axes.plot([arm["tuned"]], [arm["tuned_loss"]], "*", color=colour, markersize=13)
    if arm["given"] is not None and arm["given_loss"] is not None:
        axes.plot(
            *([arm["given"]], [arm["given_loss"]], "o"),
            color=colour,
            markerfacecolor="none",
            markersize=9,
        )
