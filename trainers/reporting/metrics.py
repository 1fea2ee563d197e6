"""Metrics of the steps between two lines of metrics.jsonl.

They are means of losses and metrics, step times, staleness and the idle time of
pipeline stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainers.loop.evaluation import means_over_examples
from trainers.loop.loop import StepEvent
from trainers.model.gradient_noise_scale import without_statistics
from trainers.pipeline_parallel.build import Pipeline
from trainers.pipeline_parallel.schedule import idle_share_of_equal_stages


class MetricsWindow:
    """Sums of losses, metrics and times over an interval of steps. A callback."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts a new interval."""
        self._sums: Counter[str] = Counter()
        self._num_steps = 0
        self._num_examples = 0.0
        self._call_seconds = 0.0
        self._step_seconds = 0.0
        self._input_seconds = 0.0

    def __call__(self, report: StepEvent) -> None:
        results = report.results
        for name, values in results.sums.items():
            self._sums[name] += values.sum()
        self._num_steps += results.applied_steps
        self._num_examples += results.sums["examples"].sum()
        self._call_seconds += report.call_seconds
        self._step_seconds += results.step_seconds.sum()
        self._input_seconds += results.input_seconds.sum()

    def means(self) -> dict[str, float]:
        """Returns loss and metrics, averaged over the examples of the interval."""
        return means_over_examples(without_statistics(self._sums))

    def examples_per_second(self) -> float:
        return self._num_examples / max(self._call_seconds, 1e-9)

    def milliseconds(self) -> dict[str, float]:
        """Returns the average milliseconds of a step: total, input, compute and rest.

        `rest` is the time in which Python starts the steps and fetches their results.
        """
        per_step = 1e3 / max(self._num_steps, 1)
        return {
            "total": self._call_seconds * per_step,
            "input": self._input_seconds * per_step,
            "compute": (self._step_seconds - self._input_seconds) * per_step,
            "rest": (self._call_seconds - self._step_seconds) * per_step,
        }

    def sums(self) -> dict[str, float]:
        """Returns the sums for a checkpoint.

        With them a resumed run writes the same next line.
        """
        return {name: float(value) for name, value in self._sums.items()}

    def restore(self, sums: Mapping[str, float]) -> None:
        """Restores the sums of a checkpoint.

        Times start at zero, because they belong to a process.

        Args:
          sums: Sums by name, from `sums`.
        """
        self.reset()
        self._sums.update(sums)


class Staleness:
    """Counts of updates by staleness. A callback.

    The staleness of an update is the number of other updates that were applied since
    its weights were read.
    """

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        self._by_worker: dict[str, Counter[int]] = {}

    def __call__(self, report: StepEvent) -> None:
        results = report.results
        if results.staleness is None:
            return
        updates = results.staleness.astype(int)
        self._all.update(updates.tolist())
        if results.workers is not None:
            for worker in np.unique(results.workers):
                counts = self._by_worker.setdefault(str(worker), Counter())
                # Updates and workers are aligned: entry i of both belongs to attempted
                # step i.
                counts.update(updates[results.workers == worker].tolist())

    def reset(self) -> None:
        """Starts a new interval."""
        self._all.clear()
        self._by_worker.clear()

    def summary(self) -> dict[str, Any] | None:
        """Returns the distribution over all updates and by worker; None without any."""
        if not self._all:
            return None
        by_worker = {
            worker: _distribution(counts)
            for worker, counts in sorted(self._by_worker.items())
        }
        return {**_distribution(self._all), "by_worker": by_worker or None}

    def scalars(self) -> dict[str, float]:
        """Returns the distribution by tag, over all updates and by worker."""
        counts = {"": self._all, **{f"/{w}": c for w, c in self._by_worker.items()}}
        return {
            f"staleness{suffix}/{figure}": float(_distribution(updates)[figure])
            for suffix, updates in counts.items()
            if updates
            for figure in ("mean", "p50", "p95", "max")
        }

    def histogram(self) -> np.ndarray | None:
        """Returns one bucket per value: left edge, right edge and count, [n, 3]."""
        rows = [(k - 0.5, k + 0.5, self._all[k]) for k in sorted(self._all)]
        return np.array(rows, np.float64) if rows else None


def _distribution(counts: Counter[int]) -> dict[str, Any]:
    # One entry for each update, so that NumPy's percentiles apply.
    values = np.repeat(list(counts), list(counts.values()))
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
        "max": int(values.max()),
        "histogram": {str(k): counts[k] for k in sorted(counts)},
    }


class PipelineIdleMeter:
    """Idle time of each pipeline stage within steps. A callback.

    The time of a step reaches from the start of its first task on any stage to the end
    of the last one. A stage is idle in this time except during its own tasks. Reading
    examples and the weight update are not included. On devices that share the cores of
    a processor, a task that waits for a core counts as work.
    """

    def __init__(self, pipeline: Pipeline | None):
        self._pipeline = pipeline
        self.reset()

    def reset(self) -> None:
        """Starts a new interval."""
        num_stages = len(self._pipeline.stages) if self._pipeline else 0
        self._busy_seconds = np.zeros(num_stages)
        self._seconds = 0.0

    def __call__(self, report: StepEvent) -> None:
        results = report.results
        if results.stage_busy_seconds is None or results.pipeline_seconds is None:
            return
        # [attempted, stages] -> [stages].
        self._busy_seconds += results.stage_busy_seconds.sum(axis=0)
        self._seconds += float(results.pipeline_seconds.sum())

    def summary(self) -> dict[str, Any] | None:
        """Returns idle fractions from 0 to 1 and their theoretical value.

        The result is None for a model without pipeline stages.
        """
        pipeline = self._pipeline
        if pipeline is None or not self._seconds:
            return None
        idle = self._idle_shares()
        return {
            "num_microbatches": pipeline.num_microbatches,
            "idle_share": float(idle.mean()),
            "idle_share_of_equal_stages": self._idle_share_of_equal_stages(pipeline),
            "stages": [
                {
                    "device": stage.device,
                    "idle_share": float(share),
                    "layers": list(stage.layers),
                }
                for stage, share in zip(pipeline.stages, idle, strict=True)
            ],
        }

    def scalars(self) -> dict[str, float]:
        """Returns the idle fractions by tag, for TensorBoard and metrics.jsonl."""
        pipeline = self._pipeline
        if pipeline is None or not self._seconds:
            return {}
        idle = {
            f"idle_share/stage_{index}": float(share)
            for index, share in enumerate(self._idle_shares())
        }
        equal = self._idle_share_of_equal_stages(pipeline)
        return {**idle, "idle_share/of_equal_stages": equal}

    def in_words(self) -> str | None:
        """Returns one line for the terminal; None without pipeline stages."""
        pipeline = self._pipeline
        if pipeline is None or not self._seconds:
            return None
        shares = ", ".join(f"{share:.0%}" for share in self._idle_shares())
        return (
            f"stages idle {shares} of the time; equally long ones would be "
            f"{self._idle_share_of_equal_stages(pipeline):.0%} with "
            f"{pipeline.num_microbatches} micro-batches"
        )

    def _idle_shares(self) -> np.ndarray:
        """Returns the idle fraction of each stage."""
        # [stages].
        return 1 - self._busy_seconds / self._seconds

    def _idle_share_of_equal_stages(self, pipeline: Pipeline) -> float:
        return idle_share_of_equal_stages(
            len(pipeline.stages), pipeline.num_microbatches
        )
