"""Results of measurements: a file for each machine and date, and a page of them.

python -m benchmarks.record     # writes the page again, as --record does
"""

import datetime
import json
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.files import write_atomically, write_json
from strategies.common.native_log import native_log_hidden

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
HEADINGS = (
    *("subject", "ratio", "spread of pairs", "goal", "reached"),
    *("project", "peer", "wall time", "memory"),
)
_NUM_HEADINGS_IN_DOCUMENT = 5

_EXPLANATION = """\
# Results

Written by `python -m benchmarks.run --record`. The files beside this page have every
run; [performance.md](../../docs/performance.md) discusses the figures.

The newest result of each subject: the median of the pairs of runs, in what its goal is
about (examples per second unless the name says otherwise); examples per second of both
sides; wall time of the whole command and peak memory as multiples of the peer's.
"""


def record(
    subject: str,
    result: Mapping[str, Any],
    machine: Mapping[str, Any],
    folder: pathlib.Path = RESULTS,
    document: pathlib.Path = DOCUMENT,
) -> pathlib.Path:
    """Puts a result into the file of this machine and today, and updates the pages.

    It replaces an earlier result of today, and returns the file.
    """
    today = datetime.date.today().isoformat()
    path = folder / f"{today}_{_short_name(machine['name'])}.json"
    subjects = _read(path)["subjects"] if path.exists() else {}
    subjects[subject] = result
    subjects = dict(sorted(subjects.items()))
    write_json(path, {"date": today, "machine": machine, "subjects": subjects})
    write_pages(folder, document)
    return path


def write_pages(
    folder: pathlib.Path = RESULTS, document: pathlib.Path = DOCUMENT
) -> None:
    """Writes the page of all results, and the table of a document."""
    write_atomically(folder / "README.md", page(folder))
    text = document.read_text(encoding="utf-8")
    begin, _, end = around_table(text)
    write_atomically(document, begin + table_of_document(folder) + end)


def page(folder: pathlib.Path = RESULTS) -> str:
    """Returns the page of all results."""
    newest, removed = _newest_results(folder)
    rows = [cells(name, result) for name, result in newest.items()]
    lines = [_EXPLANATION, *markdown_table(HEADINGS, rows)]
    for name, result in newest.items():
        lines += [
            *("", f"## {name}", ""),
            f"- project: `{result['project_command']}`",
            f"- peer: `{result['peer_command']}`",
            f"- `{result['command']}` on {result['machine']['name']}, "
            f"{_versions(result)}: [{result['file']}]({result['file']})",
        ]
    lines += ["", "## Removed benchmarks", ""]
    for name, result in removed.items():
        lines.append(
            f"- {name}: `{result['command']}` at commit {result['removed']['commit']}, "
            f"[{result['file']}]({result['file']})"
        )
    return "\n".join([*lines, ""])


def table_of_document(folder: pathlib.Path = RESULTS) -> str:
    """Returns the table for docs/performance.md: ratios and goals of all subjects."""
    newest, _ = _newest_results(folder)
    rows = [
        (
            f"[{name}](../benchmarks/results/README.md#{name})",
            *cells(name, result)[1:_NUM_HEADINGS_IN_DOCUMENT],
            result["machine"]["name"],
        )
        for name, result in newest.items()
    ]
    headings = (*HEADINGS[:_NUM_HEADINGS_IN_DOCUMENT], "machine")
    return "\n".join(markdown_table(headings, rows)) + "\n"


def around_table(text: str) -> Sequence[str]:
    """Splits a document: before its table, the table, and after it."""
    begin, end = r".*<!-- results: begin[^>]*-->\n", r"<!-- results: end -->.*"
    (parts,) = re.findall(f"^({begin})(.*?)({end})$", text, re.S)
    return parts


def cells(name: str, result: Mapping[str, Any]) -> Sequence[str]:
    """Returns the cells of a result, one for each of `HEADINGS`."""
    ratios, goal = result["ratios"], result["goal"]
    ratio = statistics.median(ratios)
    return (
        name,
        f"{ratio:.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{goal:.3g}",
        "yes" if ratio >= goal else "no",
        f"{_median('examples_per_second', result['project']) / 1e3:.2f}k/s",
        f"{_median('examples_per_second', result['peer']) / 1e3:.2f}k/s",
        f"{_multiple('wall_seconds', result):.2f}",
        f"{_multiple('peak_memory_mib', result):.2f}",
    )


def this_machine() -> Mapping[str, Any]:
    """Returns the `hardware` of result.json and a name, such as `2x Intel Xeon`."""
    # Imports TensorFlow, which takes seconds.
    with native_log_hidden():
        from trainers.reporting.result import hardware

        found = hardware()
    return {"name": f"{found['cpu_cores']}x {found['cpu']}", **found}


def _newest_results(
    folder: pathlib.Path,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Returns the newest result of each subject, and of each removed benchmark."""
    newest: dict[str, dict[str, Any]] = {}
    # Names of files begin with the date.
    for path in sorted(folder.glob("[0-9]*.json")):
        content = _read(path)
        for name, result in content["subjects"].items():
            newest[name] = {**result, "machine": content["machine"], "file": path.name}
    newest = dict(sorted(newest.items()))
    removed = {name: one for name, one in newest.items() if "removed" in one}
    return {n: one for n, one in newest.items() if n not in removed}, removed


def _read(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return [lines[0], "|---" * len(headings) + "|", *lines[1:]]


def _short_name(machine: str) -> str:
    """Returns `2x-xeon` for `2x Intel(R) Xeon(R) Processor`."""
    dropped = r"\((r|tm)\)|\b(intel|cpu|processor)\b|@.*"
    return re.sub(r"\W+", "-", re.sub(dropped, " ", machine.lower())).strip("-")


def _median(name: str, runs: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(run[name] for run in runs)


def _multiple(name: str, result: Mapping[str, Any]) -> float:
    pairs = zip(result["project"], result["peer"], strict=True)
    return statistics.median(ours[name] / theirs[name] for ours, theirs in pairs)


def _versions(result: Mapping[str, Any]) -> str:
    found = {**result["project"][0]["versions"], **result["peer"][0]["versions"]}
    return ", ".join(f"{name} {version}" for name, version in found.items())


if __name__ == "__main__":
    write_pages()
