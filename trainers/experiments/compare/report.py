"""The files of a comparison: report.html, report.md, comparison.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from strategies.common.files import write_json
from strategies.common.text import as_argument, table_lines
from trainers.experiments.compare.charts import charts_of
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.experiments.compare.comparisons import DECIDING
from trainers.experiments.explain.slower import slower_arms
from trainers.experiments.run_record import Run

# Columns of the table of metrics: heading, metric, format.
_COLUMNS = (
    ("examples/s", "examples_per_second", "{:,.0f}"),
    ("step p50 ms", "step_milliseconds_p50", "{:,.2f}"),
    ("p90", "step_milliseconds_p90", "{:,.2f}"),
    ("p99", "step_milliseconds_p99", "{:,.2f}"),
    ("s to target", "seconds_to_target_accuracy", "{:,.2f}"),
    ("train loss", "train_loss", "{:.4f}"),
    ("eval loss", "eval_loss", "{:.4f}"),
    ("accuracy", "eval_accuracy", "{:.4f}"),
    ("start-up s", "startup_seconds", "{:.1f}"),
    ("trace s", "trace_seconds", "{:.2f}"),
    ("whole run s", "wall_seconds", "{:.1f}"),
    ("peak MiB", "peak_memory_mib", "{:,.0f}"),
    ("staleness", "mean_staleness", "{:.2f}"),
)
# Fewer columns with shorter headings, so that an arm's name fits in 80 characters.
_IN_THE_TERMINAL = {
    "examples_per_second": "examples/s",
    "step_milliseconds_p50": "p50 ms",
    "seconds_to_target_accuracy": "target s",
    "eval_accuracy": "accuracy",
    "wall_seconds": "run s",
    "peak_memory_mib": "MiB",
}
_NOT_MEASURED = "-"
# Smaller differences have an exponent.
_LEAST_WITH_FIVE_DECIMALS = 1e-4


def write_report(
    folder: ComparisonDir,
    conclusion: Mapping[str, Any],
    runs: Sequence[Run],
    sections: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes the three files, comparison.json last.

    Each of `sections`, after the table of metrics, has a title, the lines of a list, a
    note below them, and the svg of a chart, in report.html only.
    """
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("trainers.experiments.compare"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        # A misspelled name in a template is an error, not an empty string.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    content = {
        **conclusion,
        "verdicts": verdict_lines(conclusion),
        "origin": origin(conclusion),
        "figures": figures_table(conclusion),
        "intervals": _intervals(conclusion),
        "sections": sections,
        "slower": slower_arms(conclusion, runs),
        "words": _words,
    }
    markdown = pages.get_template("report.md.j2").render(content)
    html = pages.get_template("report.html.j2").render(
        content, charts=charts_of(conclusion, runs)
    )
    folder.write("report.md", markdown)
    folder.write("report.html", html)
    # It exists only if both reports do.
    write_json(folder.path / "comparison.json", conclusion)


def origin(conclusion: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns when, on which machine and with which code: a name and words for each."""
    commits = [_commit(commit) for commit in conclusion["commits"]]
    date, _, rest = conclusion["created"].partition("T")
    return [
        ("date", f"{date} {rest[:5]} {rest[8:]}".strip()),
        ("machine", "; ".join(conclusion["machines"]) or "unknown"),
        ("commit", "; ".join(commits) or "unknown"),
        *([("seeds", conclusion["stopping"])] if conclusion["stopping"] else []),
    ]


def _commit(version: str) -> str:
    commit, changed, _ = version.partition("+")
    return commit[:12] + (" with uncommitted changes" if changed else "")


def verdict_lines(conclusion: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the name and the verdicts in words of each arm but the control."""
    means = [mean for arm in conclusion["arms"] for mean in arm["means"].items()]
    measured = {name for name, value in means if value is not None}
    lines: dict[str, list[str]] = {}
    for metric in _METRICS_OF_VERDICTS:
        # A model without accuracy has no verdict on it.
        if measured and metric not in measured:
            continue
        for comparison in conclusion["comparisons"]:
            if comparison["metric"] == metric:
                words = comparison["verdict"]["words"]
                shown = lines.setdefault(comparison["arm"], [])
                # "Too few seeds" holds for every metric, and is printed once.
                if words not in shown:
                    shown.append(words)
    return [(arm, "; ".join(words)) for arm, words in lines.items()]


_METRICS_OF_VERDICTS = (*DECIDING, "seconds_to_target_accuracy")


def figures_table(conclusion: Mapping[str, Any]) -> list[list[str]]:
    """Returns a heading, then means and scaling efficiency in a row for each arm."""
    rows = _figures(conclusion, (*_COLUMNS, *_other_columns(conclusion)))
    efficiencies = [
        _shown(arm["scaling_efficiency"], "{:.2f}") for arm in conclusion["arms"]
    ]
    added = zip(rows, ["efficiency", *efficiencies], strict=True)
    return [[*row, cell] for row, cell in added]


def _figures(
    conclusion: Mapping[str, Any], columns: Sequence[tuple[str, str, str]]
) -> list[list[str]]:
    """Returns the table of some metrics, without columns that no run measured."""
    arms = conclusion["arms"]
    kept = [
        (heading, name, form)
        for heading, name, form in columns
        if any(arm["means"].get(name) is not None for arm in arms)
    ]
    rows = [["arm", "runs", *(heading for heading, _, _ in kept)]]
    for arm in arms:
        figures = [_shown(arm["means"].get(name), form) for _, name, form in kept]
        count = f"{arm['num_completed']}/{len(arm['runs'])}"
        rows.append([arm["name"], count, *figures])
    return rows


def _other_columns(conclusion: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the columns of metrics that only some models have."""
    metrics = [c["metric"] for c in conclusion["comparisons"]]
    known = {name for _, name, _ in _COLUMNS}
    others = (m for m in metrics if m.startswith("eval_") and m not in known)
    return [
        (name.removeprefix("eval_").replace("_", " "), name, "{:.4g}")
        for name in dict.fromkeys(others)
    ]


def terminal_table(conclusion: Mapping[str, Any]) -> list[str]:
    """Returns the most important metrics in 80 columns; long names are wrapped."""
    columns = [
        (_IN_THE_TERMINAL[name], name, form)
        for _, name, form in _COLUMNS
        if name in _IN_THE_TERMINAL
    ]
    if all(arm["means"].get("eval_accuracy") is None for arm in conclusion["arms"]):
        # One more fits where there is no accuracy.
        columns.append(("eval loss", "eval_loss", "{:.4f}"))
    return table_lines(_figures(conclusion, columns))


def _intervals(conclusion: Mapping[str, Any]) -> list[list[str]]:
    """Returns a row per comparison: arm, metric, estimate, intervals and tests."""
    rows = []
    for entry in conclusion["comparisons"]:
        show = _ratio if entry["kind"] == "ratio" else _difference
        ends = [
            _NOT_MEASURED
            if entry[name] is None
            else " to ".join(map(show, entry[name]))
            for name in ("interval", "bootstrap_interval")
        ]
        rows.append(
            [
                entry["arm"],
                entry["metric"],
                str(entry["num_pairs"]),
                show(entry["estimate"]),
                *ends,
                _shown(entry["p_value"], "{:.2g}"),
                _shown(entry["p_value_holm"], "{:.2g}"),
                show(entry["detectable"]),
            ]
        )
    return rows


def _ratio(value: float | None) -> str:
    return _shown(value, "{:.3f}x")


def _difference(value: float | None) -> str:
    """Returns a difference with its sign, and zero without one."""
    if value == 0:
        return "0"
    # Five decimals would show it as -0.00000.
    is_tiny = value is not None and abs(value) < _LEAST_WITH_FIVE_DECIMALS
    return _shown(value, "{:+.1e}" if is_tiny else "{:+.5f}")


def _shown(value: float | None, form: str) -> str:
    return _NOT_MEASURED if value is None else form.format(value)


def _words(value: Any) -> str:
    """Returns a setting, or a digest of a dictionary, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    return as_argument(value)
