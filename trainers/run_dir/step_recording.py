"""Recording of every step, for bitwise comparison.

`<run_dir>/recording/step-00000001.npz` holds

    loss                     sum of the losses of the step's examples
    examples                 number of examples
    random_layers            number of layers that drew random numbers
    gradients/<variable>     summed over replicas, before clipping; none where the loss
                             does not depend on it
    weights/<variable>       after the step
    layer_state/<variable>   what else training changes, after the step
    metrics/<name>           value over the step's examples

exact to the bit, as float32 where that holds all of an array and as float64 elsewhere.
`keras.npz` holds what Keras itself computes of the first step's batch.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

GRADIENTS = "gradients"
WEIGHTS = "weights"
LAYER_STATE = "layer_state"
METRICS = "metrics"

_FOLDER = "recording"
_PATTERN = "step-{step:08d}.npz"
_KERAS = "keras.npz"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """Values of one step, as its file has them; arrays and metrics by name."""

    loss: float
    examples: int
    random_layers: int
    gradients: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    layer_state: Mapping[str, np.ndarray]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KerasStep:
    """The first batch of a run by `keras.Model.compute_loss`, at the initial weights.

    Attributes:
      figures: The loss, metrics and losses of outputs by name, means over the batch.
      gradients: Gradients of the loss, by variable.
      values_per_example: Numbers that the model predicts for one example.
      reason: Reason for which Keras computed nothing; empty if it did.
      refused: True if the reason is an error that Keras raised.
    """

    figures: Mapping[str, float]
    gradients: Mapping[str, np.ndarray]
    values_per_example: int = 1
    reason: str = ""
    refused: bool = False


class Recording:
    """Recorded steps of one run. The constructor writes nothing."""

    def __init__(self, run_folder: pathlib.Path):
        self._folder = run_folder / _FOLDER

    def write(self, step: int, recorded: RecordedStep) -> None:
        """Writes a step and replaces the same step from before a resumption."""
        arrays = {
            f"{group}/{name}": _smallest(np.asarray(values, np.float64))
            for group in (GRADIENTS, WEIGHTS, LAYER_STATE)
            for name, values in getattr(recorded, group).items()
        }
        arrays |= {f"{METRICS}/{name}": v for name, v in recorded.metrics.items()}
        self._folder.mkdir(exist_ok=True)
        np.savez(
            self._path(step),
            loss=recorded.loss,
            examples=recorded.examples,
            random_layers=recorded.random_layers,
            **arrays,
        )

    def num_steps(self) -> int:
        """Returns the number of recorded steps from the first one without a gap."""
        step = 0
        while self._path(step + 1).is_file():
            step += 1
        return step

    def read(self, step: int) -> RecordedStep:
        """Reads a step; its arrays are float64.

        Raises:
          OSError, ValueError: The file is absent or damaged.
        """
        with np.load(self._path(step)) as file:
            return RecordedStep(
                loss=float(file["loss"]),
                examples=int(file["examples"]),
                random_layers=int(file["random_layers"]),
                gradients=_group(file, GRADIENTS),
                weights=_group(file, WEIGHTS),
                layer_state=_group(file, LAYER_STATE),
                metrics={k: float(v) for k, v in _group(file, METRICS).items()},
            )

    def examples(self) -> list[int]:
        """Returns the number of examples of each step, from the first one."""
        found = []
        for step in range(1, self.num_steps() + 1):
            with np.load(self._path(step)) as file:
                found.append(int(file["examples"]))
        return found

    def write_keras(self, step: KerasStep) -> None:
        """Keeps what Keras computed."""
        self._folder.mkdir(exist_ok=True)
        np.savez(
            self._folder / _KERAS,
            values_per_example=step.values_per_example,
            reason=step.reason,
            refused=step.refused,
            **{f"{METRICS}/{name}": value for name, value in step.figures.items()},
            **{f"{GRADIENTS}/{name}": v for name, v in step.gradients.items()},
        )

    def read_keras(self) -> KerasStep:
        """Returns what `write_keras` kept.

        Raises:
          OSError, ValueError: The file is absent or damaged.
        """
        with np.load(self._folder / _KERAS) as file:
            return KerasStep(
                figures={k: float(v) for k, v in _group(file, METRICS).items()},
                gradients=_group(file, GRADIENTS),
                values_per_example=int(file["values_per_example"]),
                reason=str(file["reason"]),
                refused=bool(file["refused"]),
            )

    def _path(self, step: int) -> pathlib.Path:
        return self._folder / _PATTERN.format(step=step)


def _group(file: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    """Returns the arrays of one group by name, as float64."""
    start = f"{group}/"
    return {
        key.removeprefix(start): file[key].astype(np.float64)
        for key in file
        if key.startswith(start)
    }


def _smallest(values: np.ndarray) -> np.ndarray:
    """Returns the values as float32 if that is exact, which halves the file."""
    # A float64 beyond float32 overflows to infinity and compares unequal below.
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single, values) else values
