"""How step time grows with replicas, global batch and model size, beside the model.

  python -m benchmarks.growth                            # a quarter of an hour
  python -m benchmarks.growth --strategies=mirrored --record

The model is that of --mode=predict, fitted to the same short runs of two to four
replicas. Points that it was not fitted to are predicted: more replicas, larger batches,
and other widths, of which it is told how long one device takes and how many bytes a
gradient has. --record writes results/growth_<hardware>_<date>.md and .json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import RESULTS, machine, name_in_files
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.files import write_json
from strategies.common.text import table_lines
from trainers.cli import flags
from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.experiment_dir import ExperimentDir
from trainers.experiments.predict.experiments import (
    REFERENCE,
    Experiment,
    arms_of,
    of_an_arm,
    on_one_device,
    with_replicas,
)
from trainers.experiments.predict.fitting import Fitted, exchange_of, fit, measured
from trainers.experiments.predict.performance_model import Compute, Measurement, Model
from trainers.experiments.runner import Executed, Execution, with_runs

_STRATEGIES = "mirrored,multi_worker_mirrored,parameter_server"
_WIDTH, _BATCH, _REPLICAS = 512, 64, 2
_SHARED = (
    *("--model=mlp", f"--hidden_units={_WIDTH}", "--dataset=synthetic"),
    *("--input_shape=3072", f"--global_batch_size={_BATCH}", "--train_steps=150"),
)
# 1 is one device; 2 to 4 are those the model is fitted to.
_REPLICA_COUNTS = (1, 2, 3, 4, 6, 8)
_BATCHES = (32, 64, 128, 256, 512)
_WIDTHS = (64, 256, 512, 1024, 2048)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step time, measured and by the model.

    Attributes:
      axis: what changes from point to point.
      strategy: and how it updates, or REFERENCE.
      value: on the axis.
      measured_milliseconds: the median step.
      model_milliseconds: the same by the model.
      is_fitted: whether the model was fitted to this run.
    """

    axis: str
    strategy: str
    value: int
    measured_milliseconds: float
    model_milliseconds: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """Relative."""
        return self.model_milliseconds / self.measured_milliseconds - 1


class Growth:
    """Measures along each axis, and asks the model."""

    def __init__(self, config: Config, execution: Execution):
        """Measures nothing yet.

        Args:
          config: a prediction's.
          execution: of runs.
        """
        self._execution = execution
        self._reference = on_one_device(config)
        self._arms = arms_of(config)
        self._fitted_to: set[Config] = set()

    def points(self) -> list[Point]:
        """Of every axis; the model is fitted before."""
        fitted = self._fit()
        return [
            *self._along_replicas(fitted),
            *self._along_batches(fitted),
            *self._along_widths(fitted),
        ]

    def _fit(self) -> Fitted:
        experiments = [
            *self._reference,
            *(each for arm in self._arms for each in of_an_arm(arm, num_gpus=0)),
        ]
        self._fitted_to = {each.config for each in experiments}
        return fit([(each, self._run(each)) for each in experiments])

    def _along_replicas(self, fitted: Fitted) -> Iterator[Point]:
        for count in _REPLICA_COUNTS:
            if count == 1:
                yield self._one_device("replicas", 1, _BATCH, fitted.compute)
            for arm, model in self._modelled(fitted):
                if count > 1:
                    yield self._point("replicas", count, self._of(arm, count), model)

    def _along_batches(self, fitted: Fitted) -> Iterator[Point]:
        for size in _BATCHES:
            yield self._one_device("global batch", size, size, fitted.compute)
            for arm, model in self._modelled(fitted):
                experiment = self._of(arm, _REPLICAS, global_batch_size=size)
                yield self._point("global batch", size, experiment, model)

    def _along_widths(self, fitted: Fitted) -> Iterator[Point]:
        for width in _WIDTHS:
            compute = self._compute_of(width)
            yield self._one_device("width", width, _BATCH, compute, hidden_units=width)
            for arm, model in self._modelled(fitted):
                experiment = self._of(arm, _REPLICAS, hidden_units=(width,))
                exchange = exchange_of(experiment, self._run(experiment))
                of_width = dataclasses.replace(
                    model, compute=compute, exchange=exchange
                )
                yield self._point("width", width, experiment, of_width)

    def _modelled(self, fitted: Fitted) -> Iterator[tuple[Arm, Model]]:
        for arm, known in zip(self._arms, fitted.arms, strict=True):
            yield arm, known.model

    def _compute_of(self, width: int) -> Compute:
        """Of one device with that width, from two batches."""
        return Compute.fitted(
            [
                self._measured(self._alone(size, width))
                for size in (_BATCH // _REPLICAS, _BATCH)
            ]
        )

    def _one_device(
        self, axis: str, value: int, size: int, compute: Compute, hidden_units: int = 0
    ) -> Point:
        experiment = self._alone(size, hidden_units or _WIDTH)
        return Point(
            axis=axis,
            strategy=REFERENCE,
            value=value,
            measured_milliseconds=1e3 * self._measured(experiment).step_seconds,
            model_milliseconds=1e3 * compute.of(size),
            is_fitted=axis == "width" or experiment.config in self._fitted_to,
        )

    def _point(
        self, axis: str, value: int, experiment: Experiment, model: Model
    ) -> Point:
        found = self._measured(experiment)
        predicted = model.measured_here(found.num_replicas, found.examples)
        return Point(
            axis=axis,
            strategy=experiment.arm,
            value=value,
            measured_milliseconds=1e3 * found.step_seconds,
            model_milliseconds=1e3 * predicted,
            is_fitted=experiment.config in self._fitted_to,
        )

    def _alone(self, size: int, width: int) -> Experiment:
        config = self._reference[0].config.replace(
            global_batch_size=size, hidden_units=(width,)
        )
        return Experiment(arm=REFERENCE, num_replicas=1, config=config)

    def _of(self, arm: Arm, count: int, **changes: Any) -> Experiment:
        config = with_replicas(arm.config, count).replace(**changes)
        return Experiment(arm=arm.name, num_replicas=count, config=config)

    def _measured(self, experiment: Experiment) -> Measurement:
        return measured(experiment, self._run(experiment))

    def _run(self, experiment: Experiment) -> Executed:
        (width,) = experiment.config.model.hidden_units
        executed = self._execution.run_once(
            f"{experiment.name}-width-{width}", experiment.config
        )
        if not executed.run.is_completed:
            raise RuntimeError(f"{experiment.name}: {executed.run.reason}")
        return executed


def page(points: Sequence[Point], command: str, hardware: str) -> str:
    """A table for each axis; a star is at what the model was fitted to."""
    lines = [
        f"`{command}` on {hardware}.",
        "",
        f"`python -m trainers.main {' '.join(_SHARED)}`: the median step in "
        "milliseconds, and by the model; * where the model was fitted to it.",
    ]
    for axis in dict.fromkeys(point.axis for point in points):
        own = [point for point in points if point.axis == axis]
        errors = sorted(abs(p.error) for p in own if not p.is_fitted)
        lines += ["", *_table(axis, own), ""]
        lines.append(
            f"Predicted: {len(errors)} steps, off by "
            f"{100 * errors[len(errors) // 2]:.0f} % in the middle and at most by "
            f"{100 * errors[-1]:.0f} %."
        )
    return "\n".join([*lines, ""])


def _table(axis: str, points: Sequence[Point]) -> Iterator[str]:
    strategies = list(dict.fromkeys(point.strategy for point in points))
    by_place: Mapping[tuple[int, str], Point] = {
        (point.value, point.strategy): point for point in points
    }
    yield f"| {axis} | {' | '.join(strategies)} |"
    yield "|---" * (1 + len(strategies)) + "|"
    for value in dict.fromkeys(point.value for point in points):
        cells = [_cell(by_place.get((value, strategy))) for strategy in strategies]
        yield f"| {value} | {' | '.join(cells)} |"


def _cell(point: Point | None) -> str:
    if point is None:
        return ""
    star = "*" if point.is_fitted else ""
    return f"{point.measured_milliseconds:.3g} ({point.model_milliseconds:.3g}{star})"


def main() -> int:
    """Returns 1 if a run failed."""
    arguments = _parsed()
    config = flags.parse(
        ["", "--mode=predict", f"--strategies={arguments.strategies}", *_SHARED]
    )
    command = f"python -m benchmarks.growth {shlex.join(sys.argv[1:])}".strip()
    console = Console()
    points: list[Point] = []

    def work(execution: Execution) -> ExitCode:
        points.extend(Growth(config, execution).points())
        return ExitCode.DONE

    with tempfile.TemporaryDirectory(prefix="growth-") as path:
        folder = ExperimentDir(str(pathlib.Path(path) / "runs"), "predict")
        folder.begin()
        code = with_runs(folder, console, work, "a benchmark")
    if code == ExitCode.DONE:
        _show(points, command, arguments.record)
    return int(code)


def _show(points: Sequence[Point], command: str, is_recorded: bool) -> None:
    here = machine()
    rows = [["axis", "value", "strategy", "measured ms", "model ms", "error"]]
    rows += [
        [
            *(p.axis, str(p.value), p.strategy),
            f"{p.measured_milliseconds:.3g}",
            f"{p.model_milliseconds:.3g}" + ("*" if p.is_fitted else ""),
            f"{100 * p.error:.0f} %",
        ]
        for p in points
    ]
    print("\n".join(table_lines(rows)))
    if is_recorded:
        today = datetime.date.today().isoformat()
        path = RESULTS / f"growth_{name_in_files(here)}_{today}.md"
        path.write_text(page(points, command, here["name"]), encoding="utf-8")
        content = {
            "command": command,
            "machine": here,
            "points": [dataclasses.asdict(point) for point in points],
        }
        write_json(path.with_suffix(".json"), content)
        print(f"written: {path}")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", default=_STRATEGIES, help="to measure")
    parser.add_argument("--record", action="store_true", help="write into results/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
