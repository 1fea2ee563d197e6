"""Seconds by phase of every task and replica of a run, from what its tasks wrote."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.files import read_small
from strategies.common.strict_json import parse_json

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
WITHIN_A_STEP = ("input", "compute", "wait", "wire", "update")
_BETWEEN = ("summary", "eval", "checkpoint", "chief")

_MOST_BYTES = 64 << 20


@dataclasses.dataclass(slots=True)
class Replica:
    """Time of one replica.

    Attributes:
      name: Name of the replica, or of its task if that has one.
      task: Record that its task wrote.
      starts: Start of each kept step by the clock of its task, in seconds, [steps].
      steps: Seconds of each kept step by phase within a step, [steps] each.
      factor: Time of all its steps over the time of the kept ones.
    """

    name: str
    task: Mapping[str, Any]
    starts: np.ndarray
    steps: dict[str, np.ndarray]
    factor: float

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, between the first calls of the inner loop and the last."""
        within = {k: self.factor * float(v.sum()) for k, v in self.steps.items()}
        between = {kind: self.task["seconds"][kind] for kind in _BETWEEN}
        known = sum(within.values()) + sum(between.values())
        # In the rest Python starts calls, fetches results and runs callbacks.
        rest = max(self.task["wall_seconds"] - known, 0.0)
        return {**within, "python": rest, **between}

    def share(self, *phases: str) -> float:
        """Returns the part of the wall time in some phases, from 0 to 1."""
        seconds = self.seconds
        return sum(seconds[phase] for phase in phases) / self.task["wall_seconds"]

    def keep_last(self, count: int) -> None:
        """Forgets all steps but the last ones, which have the time of all then."""
        before = sum(values.sum() for values in self.steps.values())
        self.starts = self.starts[-count:]
        self.steps = {name: values[-count:] for name, values in self.steps.items()}
        kept = sum(values.sum() for values in self.steps.values())
        self.factor *= float(before / max(kept, 1e-9))


@dataclasses.dataclass(frozen=True, slots=True)
class Breakdown:
    """Time of all replicas of a run.

    Attributes:
      replicas: All replicas.
      tasks: Record of each task, by its name.
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
    """Divides the time of a run.

    Raises:
      UsageError: The run was too short to be divided.
    """
    paths = sorted((folder / "step_phases").glob("*.json"))
    tasks = {path.stem: parse_json(read_small(path, _MOST_BYTES)) for path in paths}
    if not tasks or not all(task["steps"].get("start") for task in tasks.values()):
        raise UsageError(
            "the run ended before its steps could be divided: give more --train_steps, "
            "or fewer --steps_per_loop."
        )
    return breakdown_of(tasks)


def breakdown_of(tasks: Mapping[str, Mapping[str, Any]]) -> Breakdown:
    """Divides the time of all tasks, by the content of the file of each."""
    replicas = [replica for task in tasks.values() for replica in _replicas_of(task)]
    # Steps that only one worker computes wait for nobody.
    waits = all(len({*task["steps"]["worker"]}) == 1 for task in tasks.values())
    if not waits or len(replicas) == 1:
        return Breakdown(replicas, tasks, [0.0] * len(replicas))
    # All tasks have run the same last steps.
    count = min(len(replica.starts) for replica in replicas)
    for replica in replicas:
        replica.keep_last(count)
    exchange = np.stack([replica.steps["wire"] for replica in replicas])
    # The last one to arrive waits for nobody. Only durations on one task are compared,
    # because clocks of hosts differ.
    wire, slowest = exchange.min(axis=0), exchange.argmin(axis=0)
    for replica, own in zip(replicas, exchange, strict=True):
        replica.steps.update(wait=own - wire, wire=wire)
    waited = np.sum([r.factor * r.steps["wait"] for r in replicas], axis=0)
    caused = [float(waited[slowest == index].sum()) for index in range(len(replicas))]
    return Breakdown(replicas, tasks, caused)


def _replicas_of(task: Mapping[str, Any]) -> list[Replica]:
    """Returns the replicas of a task, with all time of exchange as `wire`."""
    columns = {name: np.array(values) for name, values in task["steps"].items()}
    start, prefetch = columns["start"], columns["prefetch"]
    arrived, stop = start + columns["input"], columns["stop"] - prefetch
    reduced = columns.get("reduced", stop)
    seconds = task["seconds"]
    factor = seconds["in_steps"] / max(seconds["in_kept_steps"], 1e-9)

    def replica(name: str, rows: Any, waited: Any, compute: Any, done: Any) -> Replica:
        steps = {
            "input": waited,
            "compute": compute,
            "wait": np.zeros(len(start)),
            "wire": reduced - done,
            "update": stop - reduced,
        }
        # The clock has a resolution of a microsecond.
        steps = {n: np.maximum(values[rows], 0.0) for n, values in steps.items()}
        return Replica(name, task, start[rows], steps, factor)

    if "worker_seconds" in columns:
        # This task leads, and others compute.
        workers = columns["worker_seconds"].reshape(len(start), -1, 2)
        return [
            replica(f"worker-{index}", slice(None), own[0], own[1], start + sum(own))
            for index, own in enumerate(workers.transpose(1, 2, 0))
        ]
    # Where XLA compiles the loop, a step has one phase.
    computed = columns.get("computed", stop[:, np.newaxis]).T
    return [
        replica(
            f"{worker} replica {index}" if len(computed) > 1 else worker,
            columns["worker"] == worker,
            columns["input"] + prefetch,
            own - arrived,
            own,
        )
        for worker in dict.fromkeys(task["steps"]["worker"])
        for index, own in enumerate(computed)
    ]
