"""Idle time of pipeline stages."""

from typing import Any

import numpy as np

from trainers.loop.loop import StepEvent
from trainers.pipeline_parallel.build import Pipeline
from trainers.pipeline_parallel.schedule import idle_share_of_equal_stages

_OF_EQUAL_STAGES = "idle_share_of_equal_stages"


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

    def __call__(self, event: StepEvent) -> None:
        results = event.results
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
        # [stages].
        idle = 1 - self._busy_seconds / self._seconds
        return {
            "num_microbatches": pipeline.num_microbatches,
            "idle_share": float(idle.mean()),
            _OF_EQUAL_STAGES: idle_share_of_equal_stages(
                len(pipeline.stages), pipeline.num_microbatches
            ),
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
        found = self.summary()
        if found is None:
            return {}
        idle = {
            f"idle_share/stage_{index}": stage["idle_share"]
            for index, stage in enumerate(found["stages"])
        }
        return {**idle, "idle_share/of_equal_stages": found[_OF_EQUAL_STAGES]}

    def in_words(self) -> str | None:
        """Returns one line for the terminal; None without pipeline stages."""
        found = self.summary()
        if found is None:
            return None
        shares = ", ".join(f"{stage['idle_share']:.0%}" for stage in found["stages"])
        return (
            f"stages idle {shares} of the time; equally long ones would be "
            f"{found[_OF_EQUAL_STAGES]:.0%} with {found['num_microbatches']} "
            "micro-batches"
        )
