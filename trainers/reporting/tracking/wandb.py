"""Weights & Biases tracker.

https://docs.wandb.ai/ref/python/. Its own environment variables configure the server
and the account.
"""

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
    """Entry of a run in Weights & Biases. Satisfies `Tracker`."""

    def __init__(self) -> None:
        self._run: wandb.Run | None = None

    def begin(self, run: TrackedRun) -> str:
        """Creates or continues the entry; see `Tracker`."""
        run_id = run.kept_id("wandb")
        if run_id is None:
            # The id is generated and stored before `wandb.init`, so that a run killed
            # during that call can continue the same entry.
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
                # W&B must not capture or print anything; the program prints itself.
                console="off",
                silent=True,
                init_timeout=_SECONDS_TO_BEGIN,
                # Otherwise the process would not exit before an unreachable server has
                # received all data. Data that was not sent stays on disk for `wandb
                # sync`.
                finish_timeout=_SECONDS_TO_END,
                finish_timeout_raises=True,
            ),
        )
        # W&B's built-in step only increases, but a run after a rollback repeats steps.
        self._run.define_metric("*", step_metric=_STEP)
        return f"run {run_id}, {self._run.url or self._run.dir}"

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Adds points; see `Tracker`."""
        del seconds
        self._begun().log({**values, _STEP: step})

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends the entry; see `Tracker`."""
        run = self._begun()
        results = {f"result/{name}": value for name, value in figures.items()}
        run.summary.update({**results, "status": status})
        run.finish(exit_code=0 if status == "completed" else 1)

    def _begun(self) -> wandb.Run:
        if self._run is None:
            raise RuntimeError("begin() has to be called first")
        return self._run
