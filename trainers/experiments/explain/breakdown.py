"""Seconds by phase of every task and replica of a run, from what its tasks wrote."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.files import read_small

# Phases in the order of a step, with their names for people.
PHASES: Mapping[str, str] = {
    "input": "input",
    "compute": "forward and backward",
    "wait": "waiting for the slowest",
    "wire": "all-reduce, messages",
    "update": "update",
    "python": "Python between calls",
    "summary": "summaries",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "chief": "waiting for the chief",
}
# Phases within a step; the others are between calls of the inner loop.
WITHIN_A_STEP = ("input", "compute", "wait", "wire", "update")

_FOLDER = "step_phases"
_MOST_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """Time of one replica.

    Attributes:
      name: Name of the replica, or of its task if that has one.
      task: Name of its task.
      wall_seconds: Wall time of the task's steps and of all between them.
      seconds: Seconds by phase.
      starts: Start of each kept step, in seconds since the epoch of its task, [steps].
      steps: Seconds of each kept step by phase within a step, [steps] each.
    """

    name: str
    task: str
    wall_seconds: float
    seconds: Mapping[str, float]
    starts: np.ndarray
    steps: Mapping[str, np.ndarray]

    def share(self, *phases: str) -> float:
        """Returns the part of the wall time in some phases, from 0 to 1."""
        return sum(self.seconds[phase] for phase in phases) / self.wall_seconds

    @property
    def accounted_share(self) -> float:
        return self.share(*PHASES)


@dataclasses.dataclass(frozen=True, slots=True)
class Breakdown:
    """Time of all replicas of a run.

    Attributes:
      replicas: All replicas.
      tasks: What each task wrote, by name.
      caused_wait_seconds: Time that others waited for each replica, summed over them.
    """

    replicas: Sequence[Replica]
    tasks: Mapping[str, Mapping[str, Any]]
    caused_wait_seconds: Sequence[float]

    @property
    def slowest(self) -> Replica | None:
        """Replica that others waited for most; None if nobody waited."""
        if not any(self.caused_wait_seconds):
            return None
        return self.replicas[int(np.argmax(self.caused_wait_seconds))]


def read_breakdown(folder: pathlib.Path) -> Breakdown:
    """Reads what the tasks of a run wrote.

    Args:
      folder: Folder of the run.

    Raises:
      UsageError: The run was too short to be divided.
    """
    paths = sorted((folder / _FOLDER).glob("*.json"))
    tasks = {path.stem: json.loads(read_small(path, _MOST_BYTES)) for path in paths}
    if not tasks or not all(task["steps"].get("start") for task in tasks.values()):
        raise UsageError(
            "the run ended before its steps could be divided: give more --train_steps, "
            "or fewer --steps_per_loop."
        )
    return breakdown_of(tasks)


def breakdown_of(tasks: Mapping[str, Mapping[str, Any]]) -> Breakdown:
    """Divides the wall time of all tasks.

    Args:
      tasks: Content of the file of each task, by name.
    """
    lanes = [lane for task in tasks.values() for lane in _lanes(task)]
    # Steps that only one worker computes wait for nobody.
    workers = {(*task["steps"]["worker"],) for task in tasks.values()}
    is_synchronous = all(len({*names}) == 1 for names in workers)
    caused = [0.0] * len(lanes)
    if is_synchronous and len(lanes) > 1:
        # All tasks have run the same last steps.
        count = min(len(lane.start) for lane in lanes)
        lanes = [lane.last(count) for lane in lanes]
        exchange = np.stack([lane.steps["wire"] for lane in lanes])
        # The last one to arrive waits for nobody. Only durations on one task are
        # compared, because clocks of hosts differ.
        wire = exchange.min(axis=0)
        waits = exchange - wire
        for lane, wait in zip(lanes, waits, strict=True):
            lane.steps.update(wait=wait, wire=wire)
        slowest, waited = exchange.argmin(axis=0), waits.sum(axis=0)
        caused = [float(waited[slowest == i].sum()) for i in range(len(lanes))]
    return Breakdown([lane.replica() for lane in lanes], tasks, caused)


@dataclasses.dataclass(slots=True)
class _Lane:
    """Steps of one replica, while their phases are being found.

    Attributes:
      name: Name of the replica.
      task: What its task wrote.
      start: Start of each step in seconds, [steps].
      steps: Seconds of each step by phase, [steps] each.
      factor: Number of its steps for each one in `start`.
    """

    name: str
    task: Mapping[str, Any]
    start: np.ndarray
    steps: dict[str, np.ndarray]
    factor: float

    def last(self, count: int) -> _Lane:
        factor = self.factor * len(self.start) / count
        steps = {name: values[-count:] for name, values in self.steps.items()}
        return _Lane(self.name, self.task, self.start[-count:], steps, factor)

    def replica(self) -> Replica:
        between = {k: self.task["seconds"][k] for k in PHASES if k in _BETWEEN}
        within = {k: self.factor * float(v.sum()) for k, v in self.steps.items()}
        wall = self.task["wall_seconds"]
        # Of the rest Python starts calls, fetches results and runs callbacks.
        rest = wall - sum(within.values()) - sum(between.values())
        return Replica(
            name=self.name,
            task=self.task["task"],
            wall_seconds=wall,
            seconds={**within, "python": max(rest, 0.0), **between},
            starts=self.start,
            steps=self.steps,
        )


_BETWEEN = ("summary", "eval", "checkpoint", "chief")


def _lanes(task: Mapping[str, Any]) -> list[_Lane]:
    """Returns the replicas of a task, all time of exchange as `wire`."""
    columns = task["steps"]
    start, waited, prefetch, stop = (
        np.array(columns[name]) for name in ("start", "input", "prefetch", "stop")
    )
    arrived, stop = start + waited, stop - prefetch
    reduced = np.array(columns.get("reduced", stop))
    # Where XLA compiles the loop, a step has one phase.
    computed = np.array(columns.get("computed", stop[:, np.newaxis]))
    factor = task["num_steps"] / len(start)

    def lane(name: str, rows: Any, own_input: Any, compute: Any, after: Any) -> _Lane:
        steps = {
            "input": own_input,
            "compute": compute,
            "wait": np.zeros_like(compute),
            "wire": reduced - after,
            "update": stop - reduced,
        }
        steps = {n: np.maximum(values[rows], 0.0) for n, values in steps.items()}
        return _Lane(name, task, start[rows], steps, factor)

    if "worker_seconds" in columns:
        # This task leads, and others compute.
        seconds = np.array(columns["worker_seconds"]).reshape(len(start), -1, 2)
        return [
            lane(f"worker-{index}", slice(None), own[0], own[1], start + sum(own))
            for index, own in enumerate(seconds.transpose(1, 2, 0))
        ]
    names, several = columns["worker"], computed.shape[1] > 1
    return [
        lane(
            f"{worker} replica {index}" if several else worker,
            np.array(names) == worker,
            waited + prefetch,
            own - arrived,
            own,
        )
        for worker in dict.fromkeys(names)
        for index, own in enumerate(computed.T)
    ]
