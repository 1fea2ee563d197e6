"""Results as a page and as JSON, in benchmarks/results."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.machine import RESULTS, machine, name_in_files
from benchmarks.speed.sides import Measured
from benchmarks.speed.subject import Outcome
from strategies.common.files import write_json

HEADINGS = ("subject", "ratio", "spread", "goal", "project", "peer", "wall", "memory")


def cells(outcome: Outcome) -> Sequence[str]:
    """Of an outcome, below the headings.

    Project and peer in thousands of examples a second; wall time of the whole command
    and peak memory as the project's multiple of the peer's.
    """
    ratios = outcome.ratios
    return (
        outcome.subject.name,
        f"{outcome.median_ratio:.2f}" + ("" if outcome.is_reached else " (short)"),
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{outcome.subject.goal:g}",
        f"{_median('examples_per_second', outcome.project) / 1e3:.2f}k/s",
        f"{_median('examples_per_second', outcome.peer) / 1e3:.2f}k/s",
        f"{_multiple('wall_seconds', outcome):.2f}",
        f"{_multiple('peak_memory_mib', outcome):.2f}",
    )


def written(outcome: Outcome, command: str) -> pathlib.Path:
    """Writes <subject>_<hardware>_<date>.md and .json, and returns the first.

    Args:
      outcome: what was measured.
      command: that measured it.
    """
    here = machine()
    hardware = name_in_files(here)
    today = datetime.date.today().isoformat()
    name = f"{outcome.subject.name}_{hardware}_{today}"
    path = RESULTS / f"{name}.md"
    path.write_text(_page(outcome, here["name"], command), encoding="utf-8")
    write_json(RESULTS / f"{name}.json", _as_json(outcome, here, command))
    return path


def overview(folder: pathlib.Path = RESULTS) -> str:
    """A table of the newest result of each subject, for docs/performance.md."""
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "median_ratio" in found:
            # Names end in the date.
            newest[found["subject"]] = {**found, "page": path.with_suffix(".md").name}
    rows = [
        f"| [{name}](../benchmarks/results/{one['page']}) | "
        f"{one['median_ratio']:.2f} | {min(one['ratios']):.2f} to "
        f"{max(one['ratios']):.2f} | {one['goal']:.3g} | "
        f"{'yes' if one['median_ratio'] >= one['goal'] else 'no'} |"
        for name, one in newest.items()
    ]
    head = ["| subject | ratio | spread of pairs | goal | reached |", "|---" * 5 + "|"]
    return "\n".join([*head, *rows])


def _page(outcome: Outcome, name: str, command: str) -> str:
    pairs = zip(outcome.project, outcome.peer, outcome.ratios, strict=True)
    return "\n".join(
        [
            f"# {outcome.subject.name}",
            "",
            f"`{command}` on {name}; {_versions(outcome)}.",
            "",
            f"- project: `{outcome.subject.project.label}`",
            f"- peer: `{outcome.subject.peer.label}`",
            "",
            f"| {' | '.join(HEADINGS[1:])} |",
            "|---" * len(HEADINGS[1:]) + "|",
            f"| {' | '.join(cells(outcome)[1:])} |",
            "",
            "| project, examples/s | peer, examples/s | ratio |",
            "|---|---|---|",
            *(
                f"| {ours.examples_per_second:,.0f} | "
                f"{theirs.examples_per_second:,.0f} | {ratio:.3f} |"
                for ours, theirs, ratio in pairs
            ),
            "",
        ]
    )


def _as_json(
    outcome: Outcome, here: Mapping[str, Any], command: str
) -> Mapping[str, Any]:
    return {
        "subject": outcome.subject.name,
        "command": command,
        "machine": here,
        "project_command": outcome.subject.project.label,
        "peer_command": outcome.subject.peer.label,
        "goal": outcome.subject.goal,
        "median_ratio": outcome.median_ratio,
        "ratios": outcome.ratios,
        "project": [dataclasses.asdict(measured) for measured in outcome.project],
        "peer": [dataclasses.asdict(measured) for measured in outcome.peer],
    }


def _median(name: str, runs: Sequence[Measured]) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def _multiple(name: str, outcome: Outcome) -> float:
    pairs = zip(outcome.project, outcome.peer, strict=True)
    return statistics.median(
        getattr(ours, name) / getattr(theirs, name) for ours, theirs in pairs
    )


def _versions(outcome: Outcome) -> str:
    found = {**outcome.project[0].versions, **outcome.peer[0].versions}
    return ", ".join(f"{name} {version}" for name, version in found.items())
