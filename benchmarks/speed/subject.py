"""A comparison of two sides, and its measurement in pairs of runs."""

import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.speed.sides import Measured, Side

# Computed from a run of the project and one of its peer; larger is better.
Ratio = Callable[[Measured, Measured], float]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A comparison of two sides.

    Attributes:
      goal: Smallest ratio that is good enough.
      ratio: Ratio of the two sides, by default of their examples per second.
    """

    name: str
    project: Side
    peer: Side
    goal: float
    ratio: Ratio = lambda project, peer: (
        project.examples_per_second / peer.examples_per_second
    )


def measure_pairs(
    subject: Subject, num_pairs: int, show: Callable[[str], None]
) -> dict[str, Any]:
    """Measures pairs of runs, after a pair that is discarded.

    The runs of a pair follow each other, so that the machine's other work slows both
    sides. Every second pair begins with the peer.

    Returns:
      The result as benchmarks/results has it: commands, goal, ratios and every run.
    """
    project: list[Measured] = []
    peer: list[Measured] = []
    for number in range(num_pairs + 1):
        pair = f"pair {number} of {num_pairs}" if number else "warming up"
        show(f"{subject.name}: {pair}")
        order = [(subject.project, project), (subject.peer, peer)]
        for side, found in order[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory(prefix="speed-") as folder:
                measured = side.measure(pathlib.Path(folder))
            if number:
                found.append(measured)
    ratios = [subject.ratio(*pair) for pair in zip(project, peer, strict=True)]
    return {
        "project_command": subject.project.label,
        "peer_command": subject.peer.label,
        "goal": subject.goal,
        "median_ratio": statistics.median(ratios),
        "ratios": ratios,
        "project": [dataclasses.asdict(measured) for measured in project],
        "peer": [dataclasses.asdict(measured) for measured in peer],
    }
