"""Idle time of pipeline stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.loop.loop import StepEvent
from trainers.pipeline_parallel.build import Pipeline
from trainers.pipeline_parallel.schedule import idle_share_of_equal_stages


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
