"""Reports to Weights & Biases.

https://docs.wandb.ai/ref/python/. Whether it is online, and as whom, its own
environment variables say.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

import wandb

from trainers.reporting.tracking.base import TrackedRun

_STEP = "step"
_MOST_CHARACTERS = 64
_SECONDS_TO_BEGIN = 30.0
_SECONDS_TO_END = 45.0


class WeightsAndBiases:
    """A run in Weights & Biases. Satisfies `Tracker`."""

    def __init__(self) -> None:
        self._run: wandb.Run | None = None

    def begin(self, run: TrackedRun) -> str:
        """See `Tracker`."""
        run_id = run.kept_id("wandb")
        if run_id is None:
            # Of our own: who is killed now goes on with it, too.
            run_id = secrets.token_hex(4)
            run.keep_id("wandb", run_id)
        tags = [
            f"{name}={value}"[:_MOST_CHARACTERS] for name, value in run.tags.items()
        ]
        self._run = wandb.init(
            project=run.experiment,
            group=run.group,
            name=run.name,
            id=run_id,
            resume="allow",
            config={**run.settings, **run.tags},
            allow_val_change=True,
            tags=tags,
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            settings=wandb.Settings(
                # What is printed is the program's own.
                console="off",
                silent=True,
                init_timeout=_SECONDS_TO_BEGIN,
                # Otherwise the process would not end before a server that is gone has
                # everything. What is left stays for `wandb sync`.
                finish_timeout=_SECONDS_TO_END,
                finish_timeout_raises=True,
            ),
        )
        # W&B's own step only grows, and a run that goes back repeats some.
        self._run.define_metric("*", step_metric=_STEP)
        return f"run {run_id}, {self._run.url or self._run.dir}"

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """See `Tracker`."""
        del seconds
        self._present().log({**values, _STEP: step})

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        run = self._present()
        results = {f"result/{name}": value for name, value in figures.items()}
        run.summary.update({**results, "status": status})
        run.finish(exit_code=0 if status == "completed" else 1)

    def _present(self) -> wandb.Run:
        if self._run is None:
            raise RuntimeError("a run is told of before it has begun")
        return self._run
