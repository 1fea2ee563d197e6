"""The report of an explanation: lines, explain.json, explain.html and trace.json."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from strategies.common.text import table_lines
from trainers.experiments.explain.breakdown import (
    PHASES,
    WITHIN_A_STEP,
    Breakdown,
    Replica,
)
from trainers.experiments.explain.causes import ADVICE, Facts, find_causes

SCHEMA_VERSION = 1

# More would take a browser seconds to draw.
_MOST_TRACED_STEPS = 300
_SHORT_NAMES = dict(
    zip(
        PHASES,
        (
            *("input", "compute", "wait", "wire", "update", "Python", "summ", "eval"),
            *("ckpt", "chief"),
        ),
        strict=True,
    )
)


class Report:
    """Shares of the time of all replicas, and the causes."""

    def __init__(self, facts: Facts, notes: Sequence[str]):
        """Finds the causes; prints and writes nothing.

        Args:
          facts: All that is known about the run.
          notes: Sentences about what this run cannot tell.
        """
        self._facts = facts
        self._breakdown = facts.breakdown
        self._notes = notes
        self._causes = find_causes(facts)

    def lines(self) -> Iterator[str]:
        """Yields the lines to print: a table of shares, notes, and the cause."""
        replicas = self._breakdown.replicas
        present = [p for p in PHASES if any(r.share(p) >= 5e-4 for r in replicas)]
        rows = [["% of time", *(_SHORT_NAMES[phase] for phase in present)]]
        for replica in replicas:
            shares = [f"{100 * replica.share(phase):.0f}" for phase in present]
            rows.append([replica.name, *shares])
        yield from table_lines(rows)
        for note in self._notes:
            yield f"note      {note}"
        yield self.verdict()

    def verdict(self) -> str:
        """Returns the line with the cause and the change to make."""
        if self._causes:
            cause, *others = self._causes
            also = ", ".join(other.name for other in others)
            also = f" (also: {also})" if also else ""
            return f"cause     {cause.name}: {cause.words}: {cause.remedy}{also}"
        largest = self._largest()
        return (
            f"no cause stands out; the most, {100 * largest['share']:.0f} % of the "
            f"time of {largest['replica']}, is {largest['name']}: {largest['advice']}"
        )

    def _largest(self) -> dict[str, Any]:
        share, phase, name = max(
            (replica.share(phase), phase, replica.name)
            for replica in self._breakdown.replicas
            for phase in PHASES
        )
        return {
            "phase": phase,
            "name": PHASES[phase],
            "replica": name,
            "share": share,
            "advice": ADVICE[phase],
        }

    def content(self, command: str) -> dict[str, Any]:
        """Returns the content of explain.json.

        Args:
          command: Command that repeats the explanation.
        """
        facts, slowest = self._facts, self._breakdown.slowest
        result = facts.result
        return {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
            "strategy": result["strategy"],
            "model": facts.config.model.model,
            "dataset": facts.config.data.dataset,
            "global_batch_size": facts.config.length.global_batch_size,
            "num_replicas": result["num_replicas"],
            "compilation": result["compilation"]["scope"],
            "replicas": [_of_a_replica(r) for r in self._breakdown.replicas],
            "slowest": None if slowest is None else slowest.name,
            "caused_wait_seconds": list(self._breakdown.caused_wait_seconds),
            "causes": [
                {
                    "name": cause.name,
                    "share": cause.share,
                    "words": cause.words,
                    "remedy": cause.remedy,
                }
                for cause in self._causes
            ],
            "largest": self._largest(),
            "notes": list(self._notes),
            "hardware": result["hardware"],
        }

    def page(self, content: Mapping[str, Any]) -> str:
        """Returns explain.html.

        Args:
          content: Content of explain.json.
        """
        pages = jinja2.Environment(
            loader=jinja2.PackageLoader("trainers.experiments.explain"),
            autoescape=True,
            # A misspelled name in a template is an error, not an empty string.
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        present = [
            phase
            for phase in PHASES
            if any(replica["shares"][phase] >= 5e-4 for replica in content["replicas"])
        ]
        names = {phase: PHASES[phase] for phase in present}
        return pages.get_template("explain.html.j2").render(
            content, phases=names, verdict=self.verdict()
        )


def _of_a_replica(replica: Replica) -> dict[str, Any]:
    return {
        "name": replica.name,
        "task": replica.task,
        "wall_seconds": replica.wall_seconds,
        "accounted_share": replica.accounted_share,
        "seconds": {phase: replica.seconds[phase] for phase in PHASES},
        "shares": {phase: replica.share(phase) for phase in PHASES},
        "step_milliseconds": 1e3 * float(np.mean(sum(replica.steps.values()))),
    }


def trace_of(breakdown: Breakdown) -> dict[str, Any]:
    """Returns the newest steps as a Chrome trace, which Perfetto shows as well.

    Every task has a process whose time begins at zero: clocks of hosts differ.
    """
    events: list[dict[str, Any]] = []
    tasks = list(breakdown.tasks)
    zeros: dict[str, float] = {}
    for thread, replica in enumerate(breakdown.replicas):
        process = tasks.index(replica.task)
        starts = replica.starts[-_MOST_TRACED_STEPS:]
        zero = zeros.setdefault(replica.task, float(starts[0]))
        zeros[replica.task] = min(zero, float(starts[0]))
        labels = (("process_name", replica.task), ("thread_name", replica.name))
        for kind, name in labels:
            place = {"ph": "M", "pid": process, "tid": thread}
            events.append({"name": kind, **place, "args": {"name": name}})
        for row, begin in enumerate(
            starts - zero, start=len(replica.starts) - len(starts)
        ):
            for phase in WITHIN_A_STEP:
                seconds = float(replica.steps[phase][row])
                if seconds > 0:
                    events.append(_event(phase, process, thread, begin, seconds))
                begin += seconds
    for process, (name, task) in enumerate(breakdown.tasks.items()):
        for block in task["blocks"]:
            begin = block["start"] - zeros[name]
            if begin >= 0:
                kind, seconds = block["kind"], block["seconds"]
                events.append(_event(kind, process, -1, begin, seconds))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(
    phase: str, process: int, thread: int, begin: float, seconds: float
) -> dict[str, Any]:
    """Returns one bar of a trace, whose times are in microseconds."""
    return {
        "name": PHASES[phase],
        "cat": "step" if phase in WITHIN_A_STEP else "between",
        "ph": "X",
        "ts": round(1e6 * float(begin), 3),
        "dur": round(1e6 * seconds, 3),
        "pid": process,
        "tid": thread,
    }
