"""The report of an explanation: lines, explain.json, explain.html and trace.json."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from strategies.common.text import table_lines
from trainers.experiments.explain.breakdown import PHASES, WITHIN_A_STEP, Breakdown
from trainers.experiments.explain.causes import Facts, advice_on, find_causes

SCHEMA_VERSION = 1

# More would take a browser seconds to draw.
_MOST_TRACED_STEPS = 300
# So that all columns fit in 80 characters.
_SHORT = {"python": "Python", "summary": "summ", "checkpoint": "ckpt"}


class Report:
    """Shares of the time of all replicas, and the causes."""

    def __init__(self, facts: Facts, notes: Sequence[str]):
        """Finds the causes; prints and writes nothing.

        `notes` are sentences about the limits of this run.
        """
        self._facts = facts
        self._replicas = facts.breakdown.replicas
        self._notes = notes
        self._causes = find_causes(facts)
        # Phases that round to no tenth of a percent are not shown.
        self._phases = {
            phase: name
            for phase, name in PHASES.items()
            if any(replica.share(phase) >= 5e-4 for replica in self._replicas)
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines to print: a table of shares, notes, and the cause."""
        heading = ["% of time", *(_SHORT.get(phase, phase) for phase in self._phases)]
        rows = [
            [replica.name, *(f"{100 * replica.share(p):.0f}" for p in self._phases)]
            for replica in self._replicas
        ]
        yield from table_lines([heading, *rows])
        yield from (f"note      {note}" for note in self._notes)
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
            (r.share(phase), phase, r.name) for r in self._replicas for phase in PHASES
        )
        about = {"phase": phase, "name": PHASES[phase], "replica": name, "share": share}
        return {**about, "advice": advice_on(phase, self._facts.config)}

    def content(self, command: str) -> dict[str, Any]:
        """Returns the content of explain.json."""
        facts, slowest = self._facts, self._facts.breakdown.slowest
        return {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
            "strategy": facts.result["strategy"],
            "model": facts.config.model.name,
            "dataset": facts.config.data_name,
            "global_batch_size": facts.config.length.global_batch_size,
            "num_replicas": facts.result["num_replicas"],
            "compilation": facts.result["compilation"]["scope"],
            "replicas": [
                {
                    "name": replica.name,
                    "task": replica.task["task"],
                    "wall_seconds": replica.task["wall_seconds"],
                    "accounted_share": replica.share(*PHASES),
                    "seconds": {phase: replica.seconds[phase] for phase in PHASES},
                    "shares": {phase: replica.share(phase) for phase in PHASES},
                    "step_milliseconds": 1e3
                    * float(np.mean(sum(replica.steps.values()))),
                }
                for replica in self._replicas
            ],
            "slowest": None if slowest is None else slowest.name,
            "caused_wait_seconds": list(facts.breakdown.caused_wait_seconds),
            "causes": [dataclasses.asdict(cause) for cause in self._causes],
            "largest": self._largest(),
            "notes": list(self._notes),
            "hardware": facts.result["hardware"],
        }

    def page(self, content: Mapping[str, Any]) -> str:
        """Returns explain.html, from the content of explain.json."""
        pages = jinja2.Environment(
            loader=jinja2.PackageLoader("trainers.experiments.explain"),
            autoescape=True,
            # A misspelled name in a template is an error, not an empty string.
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return pages.get_template("explain.html.j2").render(
            content, phases=self._phases, verdict=self.verdict()
        )


def trace_of(breakdown: Breakdown) -> dict[str, Any]:
    """Returns the newest steps as a Chrome trace, which Perfetto shows as well.

    Every task has a process whose time begins at zero: clocks of hosts differ.
    """
    events: list[dict[str, Any]] = []
    tasks = list(breakdown.tasks)
    zeros: dict[str, float] = {}
    for thread, replica in enumerate(breakdown.replicas):
        task = replica.task["task"]
        place = {"pid": tasks.index(task), "tid": thread}
        begins = replica.starts[-_MOST_TRACED_STEPS:]
        zeros.setdefault(task, float(begins[0]))
        for kind, name in (("process_name", task), ("thread_name", replica.name)):
            events.append({"name": kind, "ph": "M", **place, "args": {"name": name}})
        for phase in WITHIN_A_STEP:
            seconds = replica.steps[phase][-_MOST_TRACED_STEPS:]
            events += [
                {**_bar(phase, begin - zeros[task], length), **place}
                for begin, length in zip(begins, seconds, strict=True)
                if length > 0
            ]
            # The phases of a step follow each other.
            begins = begins + seconds
    for process, task in enumerate(tasks):
        for block in breakdown.tasks[task]["blocks"]:
            bar = _bar(block["kind"], block["start"] - zeros[task], block["seconds"])
            if bar["ts"] >= 0:
                events.append({**bar, "pid": process, "tid": len(breakdown.replicas)})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _bar(phase: str, begin: float, seconds: float) -> dict[str, Any]:
    """Returns one bar of a trace, whose times are in microseconds."""
    return {
        "name": PHASES[phase],
        "cat": "step" if phase in WITHIN_A_STEP else "between",
        "ph": "X",
        "ts": round(1e6 * float(begin), 3),
        "dur": round(1e6 * float(seconds), 3),
    }
