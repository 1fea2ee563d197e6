"""Number of steps of a short run: as many as take a few seconds."""

import dataclasses
from collections.abc import Iterator

from trainers.experiments.predict.experiments import (
    ALONE,
    MOST_REPLICAS_HERE,
    REFERENCE,
    Experiment,
)
from trainers.experiments.predict.links import FEWEST_STEPS_OF_EACH

# In two runs of four workers, medians of the first 60, 100, 150 and 250 steps, of about
# 16 ms each, were 15.4, 15.4, 15.1 and 14.9 ms, and 16.3, 17.4, 17.8 and 17.1: longer
# runs differ from each other by more. The first half second of both was slower.
_TRAIN_SECONDS = 3.0
# Enough for the largest number of asynchronous workers that is measured.
_FEWEST_STEPS = MOST_REPLICAS_HERE * FEWEST_STEPS_OF_EACH


class RunLengths:
    """Step times of earlier runs, from which the length of the next one follows."""

    def __init__(self) -> None:
        self._measured: list[tuple[Experiment, float]] = []

    def add(self, run: Experiment, step_seconds: float) -> None:
        self._measured.append((run, step_seconds))

    def limited(self, run: Experiment) -> Experiment:
        """Returns a run with fewer steps, if all of its steps would take too long."""
        expected, most = self._expected_seconds(run), run.config.length.train_steps
        if expected is None or most is None:
            return run
        steps = max(int(_TRAIN_SECONDS / expected), _FEWEST_STEPS)
        config = run.config.replace(train_steps=min(steps, most))
        return dataclasses.replace(run, config=config)

    def _expected_seconds(self, run: Experiment) -> float | None:
        """Returns the step time by earlier runs; None if none is like this one."""
        for earlier, seconds in self._like(run):
            return seconds * self._slowdown(run, earlier)
        return None

    def _like(self, run: Experiment) -> Iterator[tuple[Experiment, float]]:
        """Yields earlier runs and their step times, the most similar one first."""
        newest_first = self._measured[::-1]
        yield from (m for m in newest_first if _kind(m[0]) == _kind(run))
        # A small network takes much less time than any other.
        if run.size != "small":
            others = [m for m in newest_first if m[0].size == "own"]
            yield from (m for m in others if m[0].arm == run.arm and _same(m[0], run))
            yield from (m for m in others if m[0].arm == REFERENCE and _same(m[0], run))

    def _slowdown(self, run: Experiment, earlier: Experiment) -> float:
        """Returns how many times as long a step takes with another number of replicas.

        Runs with the model's own gradients show it, if both numbers have one.
        """
        by_count = {
            e.num_replicas: seconds
            for e, seconds in reversed(self._measured)
            if e.arm == earlier.arm and e.size == "own"
        }
        counts = run.num_replicas, earlier.num_replicas
        if earlier.size != "own" and all(count in by_count for count in counts):
            return by_count[counts[0]] / by_count[counts[1]]
        return counts[0] / counts[1]


def _kind(run: Experiment) -> tuple[str, str]:
    return REFERENCE if run.arm == ALONE else run.arm, run.size


def _same(one: Experiment, other: Experiment) -> bool:
    return one.config.length.global_batch_size == other.config.length.global_batch_size
