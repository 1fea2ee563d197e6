"""The section of a report about the search, with its chart."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.drawing import COLORS, drawn, plain
from trainers.experiments.tune.report_part import words_of_arms, words_of_differences


def section_of(tuning: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section of a report, from `tuning` of comparison.json."""
    steps = tuning["steps"]
    lengths = ", ".join(f"{rung['steps']:,}" for rung in tuning["rungs"])
    note = (
        f"The search took {steps['search']:,} steps, "
        f"{100 * steps['search'] / steps['grid']:.3g} % of whole runs of all values "
        f"({steps['with_given_values']:,} with the runs of the given values). All its "
        f"runs have seed {tuning['seed']}, which no run of the comparison has; the "
        "verdicts are from the runs of the comparison alone. The longer the runs "
        f"({lengths} steps), the stronger the line; a star is the tuned value, a ring "
        "the given one, a cross a run that did not complete."
    )
    return {
        "title": f"Search of {tuning['setting']}",
        "lines": [*words_of_arms(tuning), *words_of_differences(tuning)],
        "note": note,
        "svg": drawn(_draw, tuning, height=3.4),
    }


def _draw(figure: Figure, tuning: Mapping[str, Any]) -> None:
    """Draws the loss of each arm over the values of the setting."""
    # Arms have the colors of the other charts.
    axes = figure.subplots()
    for index, arm in enumerate(tuning["arms"]):
        _draw_arm(axes, tuning["rungs"], arm, COLORS[index % len(COLORS)])
    if tuning["is_logarithmic"]:
        axes.set_xscale("log")
    # Losses approach zero; some of a user's own are negative.
    if axes.dataLim.y0 > 0:
        axes.set_yscale("log")
    axes.set_xlabel(tuning["setting"])
    axes.set_ylabel("loss at the end of a run")
    axes.legend(frameon=False)


def _draw_arm(axes: Axes, rungs: Any, arm: Mapping[str, Any], color: str) -> None:
    for index, rung in enumerate(rungs):
        losses = {
            trial["value"]: run["loss"]
            for trial in arm["trials"]
            for run in trial["runs"]
            if run["steps"] == rung["steps"]
        }
        points = [each for each in losses.items() if each[1] is not None]
        failed = [value for value, loss in losses.items() if loss is None]
        axes.plot(
            *zip(*points, strict=True),
            marker=".",
            color=color,
            alpha=(index + 1) / len(rungs),
            # One entry of the legend for each arm.
            label=plain(arm["name"]) if index == len(rungs) - 1 else None,
        )
        # At the lower edge, because there is no loss.
        edge = axes.get_xaxis_transform()
        axes.plot(failed, [0.02] * len(failed), "x", color=color, transform=edge)
    axes.plot(arm["tuned"], arm["tuned_loss"], "*", color=color, markersize=13)
    if None not in (arm["given"], arm["given_loss"]):
        ring: dict[str, Any] = {"markerfacecolor": "none", "markersize": 9}
        axes.plot(arm["given"], arm["given_loss"], "o", color=color, **ring)
