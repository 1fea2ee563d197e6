"""What is compared, how often, and what that came to."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

from benchmarks.speed.sides import Measured, Side

# Of a run of the project and one of its peer: the ratio that is to be high enough.
Ratio = Callable[[Measured, Measured], float]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A comparison of two sides.

    Attributes:
      name: words joined by dashes.
      project: the project's side.
      peer: what it is compared with.
      goal: the least of `ratio`.
      ratio: by default how many times as many examples a second.
    """

    name: str
    project: Side
    peer: Side
    goal: float
    ratio: Ratio = lambda project, peer: (
        project.examples_per_second / peer.examples_per_second
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What pairs of runs came to.

    Attributes:
      subject: what was compared.
      project: of each pair the project's run.
      peer: of each pair the other.
    """

    subject: Subject
    project: Sequence[Measured]
    peer: Sequence[Measured]

    @property
    def ratios(self) -> list[float]:
        """Of each pair."""
        pairs = zip(self.project, self.peer, strict=True)
        return [self.subject.ratio(ours, theirs) for ours, theirs in pairs]

    @property
    def median_ratio(self) -> float:
        """What is held against the goal."""
        return statistics.median(self.ratios)

    @property
    def is_reached(self) -> bool:
        """Whether the goal is."""
        return self.median_ratio >= self.subject.goal


def compared(subject: Subject, num_pairs: int, show: Callable[[str], None]) -> Outcome:
    """Measures pairs, one side after the other, after a pair that is discarded.

    Whatever else the machine does then changes both sides. Every second pair begins
    with the peer.

    Args:
      subject: what to compare.
      num_pairs: how many pairs count.
      show: is told what is being measured.
    """
    project: list[Measured] = []
    peer: list[Measured] = []
    for number in range(num_pairs + 1):
        show(
            f"{subject.name}: pair {number} of {num_pairs}"
            if number
            else f"{subject.name}: warming up"
        )
        order = [(subject.project, project), (subject.peer, peer)]
        for side, found in order[:: 1 if number % 2 else -1]:
            measured = _measured(side)
            if number:
                found.append(measured)
    return Outcome(subject=subject, project=project, peer=peer)


def _measured(side: Side) -> Measured:
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        return side.measure(pathlib.Path(folder))
