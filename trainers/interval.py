"""What happened since the last line of metrics.jsonl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trainers.loop import StepReport
from trainers.replica_statistics import without_statistics


class Interval:
    """Sums of losses, metrics and times over a stretch of steps. A hook."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins a new stretch."""
        self._sums: Counter[str] = Counter()
        self._num_steps = 0
        self._num_examples = 0.0
        self._call_seconds = 0.0
        self._step_seconds = 0.0
        self._input_seconds = 0.0

    def __call__(self, report: StepReport) -> None:
        results = report.results
        for name, values in results.sums.items():
            self._sums[name] += values.sum()
        self._num_steps += results.applied_steps
        self._num_examples += results.sums["examples"].sum()
        self._call_seconds += report.call_seconds
        self._step_seconds += results.step_seconds.sum()
        self._input_seconds += results.input_seconds.sum()

    def means(self) -> dict[str, float]:
        """Loss and metrics, averaged over the examples of the stretch."""
        return means_over_examples(without_statistics(self._sums))

    def examples_per_second(self) -> float:
        return self._num_examples / max(self._call_seconds, 1e-9)

    def milliseconds(self) -> dict[str, float]:
        """Of an average step: in total, waiting for input, computing, and the rest.

        The rest is what Python takes to start the steps and fetch their results.
        """
        per_step = 1e3 / max(self._num_steps, 1)
        return {
            "total": self._call_seconds * per_step,
            "input": self._input_seconds * per_step,
            "compute": (self._step_seconds - self._input_seconds) * per_step,
            "rest": (self._call_seconds - self._step_seconds) * per_step,
        }

    def sums(self) -> dict[str, float]:
        """For a checkpoint, so that a resumed run writes the same next line."""
        return {name: float(value) for name, value in self._sums.items()}

    def restore(self, sums: Mapping[str, float]) -> None:
        """Takes sums up again; times count from here, they belong to a process."""
        self.reset()
        self._sums.update(sums)


def means_over_examples(sums: Mapping[str, float]) -> dict[str, float]:
    """Numerators divided by their common denominator, `examples`."""
    examples = sums["examples"]
    return {
        name: float(value / examples)
        for name, value in sums.items()
        if name != "examples"
    }
