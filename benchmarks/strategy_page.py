"""The page and the picture of the comparison of all strategies."""

import collections
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.record import ROOT, markdown_table
from trainers.experiments.compare.statistics import paired
from trainers.experiments.drawing import draw_ratios

PAGE = ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "pictures" / "results.png"

SPEED, ACCURACY = "examples_per_second", "eval_accuracy"
_POINTS = 100
_NONE = "-"
_HEADINGS = (
    *("arm", "runs", "examples/s", "speed", "accuracy", "difference in points"),
    *("sent in a step", "staleness"),
)

_EXPLANATION = """\
# Results

Of {compared} comparisons with `{control}`, {slower} found a strategy slower, by up to
{most:.0f} times, and {faster} found one faster. All replicas share the cores of one
machine, without a GPU: the tables show the cost of a strategy, and no gain of devices.

`make table` writes this page. It compares every strategy, with each `--update`, on
three models, [until each has its verdicts](compare.md#as-many-seeds-as-it-takes) or six
seeds.

- *Speed* is an arm's examples a second as a multiple of `{control}`'s.
- *Difference* is the accuracy of an arm minus that of `{control}`, in percentage
  points. Both have intervals of {confidence:.0%} for all looks together. A verdict is
  corrected for the number of arms, and may be open even if the interval excludes 1x.
- *Sent in a step* has the bytes that each replica sends for one update.
- *Staleness* is the mean number of other updates between reading the weights and
  changing them, with an interval of 95 % over runs.
"""


def page(recorded: Mapping[str, Any]) -> str:
    """Returns the page of a strategy_table.json, in Markdown."""
    subjects = recorded["subjects"]
    first = next(iter(subjects.values()))
    commits = sorted({c[:12] for s in subjects.values() for c in s["commits"]})
    commands = {name: shlex.split(s["command"]) for name, s in subjects.items()}
    common = set.intersection(*map(set, commands.values()))
    compared = [c for s in subjects.values() for c in s["comparisons"]]
    speeds = [c for c in compared if c["metric"] == SPEED]
    found = {"slower": 0, "faster": 0}
    found |= collections.Counter((c["verdict"] or "-").split()[0] for c in speeds)
    most = 1 / min(c["estimate"] or 1 for c in speeds)
    lines = [
        _EXPLANATION.format(**first, **found, compared=len(speeds), most=most),
        f"Measured on {recorded['machine']['name']}, {first['created'][:10]}, "
        f"commit {', '.join(commits)}.",
        "",
        f"![Speed of every strategy relative to one device](pictures/{PICTURE.name})",
    ]
    for name, subject in subjects.items():
        own = [word for word in commands[name] if word not in common]
        lines += ["", *_section(name, subject, own)]
    shared = [word for word in commands[name] if word in common]
    lines += ["", "## Command", "", "With the flags of a model added:", "", "```sh"]
    return "\n".join([*lines, _wrapped(shlex.join(shared)), "```", ""])


def _section(name: str, subject: Mapping[str, Any], flags: Sequence[str]) -> list[str]:
    rows = [_cells(arm, subject) for arm in subject["arms"]]
    shown = f" (`{' '.join(flags)}`)" if flags else ""
    lines = [
        f"## {name.capitalize()}",
        "",
        f"The model is {subject['model']}{shown}. Margins of equivalence: "
        f"{subject['speed_margin_percent']:g} % in speed, "
        f"{subject['accuracy_margin_points'] / _POINTS:g} in accuracy. "
        f"Seeds that ran: {subject['stopping']}.",
        "",
        *markdown_table(_HEADINGS, rows),
        "",
    ]
    for arm in subject["arms"]:
        words = [
            c["verdict"]
            for c in subject["comparisons"]
            if c["arm"] == arm["name"] and c["verdict"]
        ]
        if arm["reason"]:
            words = [f"did not complete every run: {arm['reason']}"]
        if words:
            lines.append(f"- `{arm['name']}`: {'; '.join(dict.fromkeys(words))}")
    return lines + [f"- Note: {remark}" for remark in subject["remarks"]]


def _cells(arm: Mapping[str, Any], subject: Mapping[str, Any]) -> list[str]:
    """Returns the row of one arm, a cell for each of `_HEADINGS`."""
    name, means = arm["name"], arm["means"]
    return [
        f"`{name}`",
        str(arm["num_completed"]),
        _shown(means[SPEED], "{:,.0f}"),
        _with_interval(name, subject, SPEED, "{:.2f}x"),
        _shown(means[ACCURACY], "{:.4f}"),
        _with_interval(name, subject, ACCURACY, "{:+.2f}", _POINTS),
        _bytes(arm["communication"]),
        _mean_with_interval(arm["staleness"]),
    ]


def _with_interval(
    arm: str, subject: Mapping[str, Any], metric: str, form: str, factor: float = 1.0
) -> str:
    """Returns the comparison of an arm with the control, for one metric."""
    compared = [c for c in subject["comparisons"] if c["metric"] == metric]
    found = [c for c in compared if c["arm"] == arm]
    if not found or found[0]["estimate"] is None:
        return _NONE
    (comparison,) = found
    text = form.format(factor * comparison["estimate"])
    if comparison["interval"] is None:
        return text
    low, high = (form.format(factor * end) for end in comparison["interval"])
    if not comparison["estimate"] and low == high:
        return "0"
    return f"{text} ({low} to {high})"


def _mean_with_interval(values: Sequence[float]) -> str:
    summary = paired(values, with_bootstrap=False) if values else None
    if summary is None or summary.interval is None:
        return _NONE if summary is None else f"{summary.mean:.2f}"
    low, high = summary.interval
    return f"{summary.mean:.2f} ({max(low, 0):.2f} to {high:.2f})"


def _bytes(communication: Mapping[str, Any] | None) -> str:
    count = (communication or {}).get("bytes_per_step_per_replica")
    if not count:
        return _NONE
    return f"{count / 1e6:,.2f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _shown(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _wrapped(command: str) -> str:
    """Returns a shell command with an arm or flag on each line."""
    return command.replace(" '--", " \\\n  '--").replace(" --seeds", " \\\n  --seeds")


def draw(recorded: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws the speeds of all arms with their intervals, one chart for each model."""
    subjects = recorded["subjects"]
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    charts = figure.subplots(1, len(subjects), sharey=True, squeeze=False)
    for axes, (name, subject) in zip(charts[0], subjects.items(), strict=True):
        speeds = [c for c in subject["comparisons"] if c["metric"] == SPEED]
        # A single seed has no interval to draw.
        if shown := [c for c in speeds if c["interval"]]:
            draw_ratios(axes, shown)
        axes.set_title(name)
    control = next(iter(subjects.values()))["control"]
    figure.supxlabel(f"examples per second, as a multiple of {control}", fontsize=10)
    figure.savefig(path, dpi=130)
