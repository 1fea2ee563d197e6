"""Values of a recorded step (`--set=report.record_steps=true`), taken from the run."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from models.objective import add_steps, as_scalars
from strategies.common.text import unique_names
from trainers.loop.loop import StepEvent
from trainers.loop.parts import TrainingParts
from trainers.model.gradient_noise_scale import without_statistics
from trainers.model.random_numbers.seeds import seed_states
from trainers.model.update import RECORDED
from trainers.run_dir.step_recording import RecordedStep, Recording


def record_step(
    event: StepEvent, parts: TrainingParts, run_folder: pathlib.Path
) -> None:
    """Writes all values of a step, from a call that ran this step alone."""
    results = event.results
    sums: dict[str, Any] = {}
    add_steps(sums, results.sums)
    metrics = as_scalars(parts.results(without_statistics(sums)))
    recorded = RecordedStep(
        loss=float(results.sums["loss"][-1]),
        examples=int(results.sums["examples"][-1]),
        random_layers=len(seed_states(parts.model)),
        gradients={
            name.removeprefix(RECORDED): values
            for name, values in results.details.items()
            if name.startswith(RECORDED)
        },
        weights=_values(parts.model.trainable_variables),
        layer_state=_values(parts.layer_state.variables),
        metrics={name: value for name, value in metrics.items() if name != "loss"},
    )
    Recording(run_folder).write(event.step, recorded)


def _values(variables: Sequence[keras.Variable]) -> dict[str, np.ndarray]:
    names = unique_names([variable.path for variable in variables])
    return {
        name: variable.numpy() for name, variable in zip(names, variables, strict=True)
    }
