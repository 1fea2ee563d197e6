"""Predicts step times, then measures them: how far predictions hold.

  python -m benchmarks.growth            # a part of the points, 35 minutes
  python -m benchmarks.growth --full     # all of them, an hour and 40 minutes
  python -m benchmarks.growth --repetitions=2   # medians of equal runs

The model is that of --mode=predict, fitted to its short runs of two to four replicas
and one width. All points are predicted before any is measured: other replicas, widths
and bandwidths (0: no limit). Of a width the model gets the time of one device and the
bytes of a gradient. An interrupted benchmark continues at the same commit. --record
writes results/growth.json and the table of docs/prediction.md.
"""

import argparse
import dataclasses
import itertools
import pathlib
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.record import RESULTS, ROOT, markdown_table, this_machine
from benchmarks.strategy_table import folder_of
from strategies.common.files import write_atomically, write_json
from strategies.processes.starter import ProcessStarter
from trainers.cli import flags
from trainers.cli.warm_start import starter_of
from trainers.config.config import Config
from trainers.experiments.command import measure_run
from trainers.experiments.predict import experiments, links
from trainers.experiments.predict.compute_model import Compute, Measurement
from trainers.experiments.predict.experiments import Experiment
from trainers.experiments.predict.fitting import (
    Fitted,
    executed_with_links,
    fit,
    median_of,
)
from trainers.experiments.predict.fitting import measured as measurement_of
from trainers.experiments.predict.predictions import content_of_an_arm
from trainers.experiments.run_record import read_run
from trainers.experiments.runner import Executed
from trainers.fault_tolerance.preemption import PreemptionSignals

RECORD = RESULTS / "growth.json"
DOCUMENT = ROOT / "docs" / "prediction.md"
_STRATEGIES = "mirrored,multi_worker_mirrored,parameter_server"
_WIDTH, _BATCH, _INPUTS, _CLASSES, _STEPS = 512, 64, 3072, 10, 150
_SHARED = (
    *("--model=mlp", f"--hidden_units={_WIDTH}", "--dataset=synthetic"),
    *(f"--set=data.input_shape={_INPUTS}", f"--global_batch_size={_BATCH}"),
    f"--train_steps={_STEPS}",
)
_PART = {"replicas": "2,8", "widths": "64,512,2048", "bandwidths": "0,1000,100"}
_ALL = {**_PART, "replicas": "2,3,4,6,8", "widths": "64,256,512,1024,2048"}
# A run takes about this long beside its steps, and has as many steps as take this long.
_START_SECONDS, _TRAIN_SECONDS = 9.0, 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step time, predicted and, later, measured.

    Attributes:
      width: Number of hidden units.
      bandwidth_mbit: Emulated bandwidth; 0 for loopback.
      is_fitted: True if the model was fitted to this run.
      measured_seconds: Median step of a run, and of equal runs; 0 before them.
    """

    strategy: str
    replicas: int
    width: int
    bandwidth_mbit: float
    is_fitted: bool
    predicted_seconds: float
    steps: int = 0
    measured_seconds: float = 0.0

    @property
    def place(self) -> tuple[int, int, float]:
        return self.replicas, self.width, self.bandwidth_mbit

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1


class Growth:
    """Predicts all points, then measures them; a run that is in the folder is read."""

    def __init__(self, config: Config, folder: pathlib.Path, starter: ProcessStarter):
        """Takes the configuration of a prediction, and runs nothing."""
        self._folder = folder
        self._repetitions = config.prediction.repetitions
        self._starter = starter
        self._reference = experiments.on_one_device(config)
        self._arms = {arm.name: arm for arm in experiments.arms_of(config)}
        self._fitted_to: set[tuple[str, tuple[int, int, float]]] = set()

    def fit(self) -> Fitted:
        """Returns the model of the runs that a prediction makes."""
        arms = [experiments.of_an_arm(arm, num_gpus=0) for arm in self._arms.values()]
        every = (*self._reference, *itertools.chain(*arms))
        has_links = links.obstacle_to_links() is None
        runs = list(
            executed_with_links(every, has_links, self._executed, self._repetitions)
        )
        self._fitted_to = {
            (e.arm, (e.num_replicas, _WIDTH, e.bandwidth_mbit or 0))
            for e, _ in runs
            if e.size == "own" and e.config.length.global_batch_size == _BATCH
        }
        return fit(runs)

    def predicted(
        self, fitted: Fitted, wanted: Mapping[str, Sequence[int]]
    ) -> Iterator[Point]:
        """Yields all points, predicted."""
        for width in wanted["widths"]:
            num_weights = (_INPUTS + 1) * width + (width + 1) * _CLASSES
            compute = fitted.compute if width == _WIDTH else self._compute_of(width)
            for arm in fitted.arms:
                model = dataclasses.replace(arm.model, compute=compute)
                rates = wanted["bandwidths"] if model.has_links else (0,)
                for count, rate in itertools.product(wanted["replicas"], rates):
                    run = Measurement(
                        num_replicas=count,
                        examples=_BATCH / model.exchange.shares(count),
                        step_seconds=0.0,
                        gradient_bytes=4.0 * num_weights,
                        bandwidth_mbit=rate or None,
                    )
                    seconds, key = model.of(run), (arm.name, (count, width, rate))
                    point = Point(
                        strategy=arm.name,
                        replicas=count,
                        width=width,
                        bandwidth_mbit=rate,
                        is_fitted=key in self._fitted_to,
                        predicted_seconds=seconds,
                    )
                    least = links.fewest_steps(self._experiment(point))
                    steps = min(max(int(_TRAIN_SECONDS / seconds), least), _STEPS)
                    yield dataclasses.replace(point, steps=steps)

    def measured(self, points: Sequence[Point]) -> list[Point]:
        """Returns points with the step times of their runs, repeated in rounds."""
        runs = [self._experiment(point) for point in points]
        found = zip(points, self._medians(runs), strict=True)
        return [
            dataclasses.replace(point, measured_seconds=median.step_seconds)
            for point, median in found
        ]

    def _medians(self, runs: Sequence[Experiment]) -> list[Measurement]:
        """Returns a measurement of each run, with the median of its repetitions."""
        rounds = []
        for repetition in range(1, self._repetitions + 1):
            equal = [dataclasses.replace(run, repetition=repetition) for run in runs]
            rounds.append([measurement_of(run, self._executed(run)) for run in equal])
        return [median_of(equal) for equal in zip(*rounds, strict=True)]

    def _experiment(self, point: Point) -> Experiment:
        arm = self._arms[point.strategy]
        config = experiments.with_replicas(arm.config, point.replicas).replace(
            hidden_units=(point.width,),
            train_steps=point.steps or 1,
            emulated_bandwidth_mbit=point.bandwidth_mbit or None,
            jit_compile="off",
        )
        return Experiment(arm=arm.name, num_replicas=point.replicas, config=config)

    def _compute_of(self, width: int) -> Compute:
        # The smallest and the largest part of the batch.
        runs = [
            dataclasses.replace(each, config=each.config.replace(hidden_units=(width,)))
            for each in (self._reference[0], self._reference[3])
        ]
        return Compute.fitted(self._medians(runs))

    def _executed(self, experiment: Experiment) -> Executed:
        (width,) = experiment.config.model.hidden_units
        name = f"{experiment.name}-width-{width}"
        path, log = self._folder / name, self._folder / f"{name}.log"
        run = read_run(path, arm=name, seed=0, log=log)
        if not run.is_completed:
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            # A resumed run would be timed wrongly.
            shutil.rmtree(path, ignore_errors=True)
            config = experiment.config.replace(run_dir=str(path))
            measure_run(config, log, PreemptionSignals(), self._starter)
            run = read_run(path, arm=name, seed=0, log=log)
        if not run.is_completed:
            raise RuntimeError(f"{name}: {run.reason}")
        return Executed(experiment.config, run)


def summary_of(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the errors of points that were not fitted, and how many orders hold.

    An order is that of two strategies at the same replicas, width and bandwidth, where
    not both points were fitted.
    """
    errors = [abs(p.error) for p in points if not p.is_fitted]
    orders = [
        (a.predicted_seconds < b.predicted_seconds)
        == (a.measured_seconds < b.measured_seconds)
        for a, b in itertools.combinations(points, 2)
        if a.place == b.place and not (a.is_fitted and b.is_fitted)
    ]
    return {
        "points": len(errors),
        "median_error": statistics.median(errors) if errors else None,
        "largest_error": max(errors, default=None),
        "pairs": len(orders),
        "right_order": statistics.mean(orders) if orders else None,
    }


def table_of(points: Sequence[Point]) -> str:
    """Returns a row for each strategy and bandwidth, and of all, in Markdown."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for p in points:
        groups.setdefault((p.strategy, f"{p.bandwidth_mbit:g} Mbit/s"), []).append(p)
    rows = []
    for names, members in [*groups.items(), (("all", ""), list(points))]:
        found = summary_of(members)
        predicted = [p for p in members if not p.is_fitted]
        keys = ("median_error", "largest_error", "right_order")
        cells = ["-" if found[k] is None else f"{found[k]:.0%}" for k in keys]
        at = "-"
        if predicted:
            worst = max(predicted, key=lambda p: abs(p.error))
            at = f"{worst.replicas} replicas, width {worst.width}: {worst.error:+.0%}"
        rows.append((*names, str(found["points"]), *cells, at))
    first = ("strategy", "bandwidth", "points", "median error", "largest error")
    return "\n".join(markdown_table((*first, "right order", "largest at"), rows))


def _record(content: Mapping[str, Any], table: str) -> None:
    write_json(RECORD, content)
    marks = r"(<!-- growth: begin -->\n).*(<!-- growth: end -->)"
    text = DOCUMENT.read_text(encoding="utf-8")
    about = "`{command}`, {date}; 0 Mbit/s is loopback:".format_map(content)
    filled = rf"\g<1>{about}\n\n{table}\n\g<2>"
    write_atomically(DOCUMENT, re.sub(marks, filled, text, flags=re.DOTALL))


def main() -> int:
    """Returns 0 once all points are measured."""
    arguments = _parse_arguments()
    words = ["--mode=predict", f"--strategies={arguments.strategies}", *_SHARED]
    if arguments.repetitions != 1:
        words.append(f"--set=prediction.repetitions={arguments.repetitions}")
    config = flags.parse(["", *words])
    folder = arguments.folder or folder_of("growth")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {n: [int(v) for v in getattr(arguments, n).split(",")] for n in _PART}
    with starter_of(config) as starter:
        growth = Growth(config, folder, starter)
        repetitions = config.prediction.repetitions
        print(
            f"runs are in {folder}; the fit takes {12 * repetitions} minutes",
            flush=True,
        )
        fitted = growth.fit()
        points = list(growth.predicted(fitted, wanted))
        seconds = sum(_START_SECONDS + p.steps * p.predicted_seconds for p in points)
        minutes = repetitions * seconds / 60
        print(f"{len(points)} points, {minutes:.0f} minutes from here", flush=True)
        # The folder changes no measurement.
        given = [each for each in sys.argv[1:] if not each.startswith("--folder=")]
        content = {
            "command": " ".join(["python -m benchmarks.growth", *given]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": this_machine(),
            "prediction": f"python -m trainers.main {' '.join(words)}",
            "strategies": [content_of_an_arm(arm) for arm in fitted.arms],
            "points": [dataclasses.asdict(p) for p in points],
        }
        write_json(folder / "predicted.json", content)
        points = growth.measured(points)
    content["points"] = [{**dataclasses.asdict(p), "error": p.error} for p in points]
    content["summary"] = summary_of(points)
    write_json(folder / "growth.json", content)
    print(table_of(points))
    if arguments.record:
        _record(content, table_of(points))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", default=_STRATEGIES, help="to measure")
    parser.add_argument("--full", action="store_true", help="all points")
    for name in _PART:
        parser.add_argument(f"--{name}", help="numbers, separated by commas")
    parser.add_argument("--repetitions", type=int, default=1, help="of each run")
    parser.add_argument("--folder", type=pathlib.Path, help="of the runs")
    parser.add_argument("--record", action="store_true", help="write into results/")
    arguments = parser.parse_args()
    for name, value in (_ALL if arguments.full else _PART).items():
        given = value if getattr(arguments, name) is None else getattr(arguments, name)
        if not re.fullmatch(r"[0-9]+(,[0-9]+)*", given):
            parser.error(f"--{name}={given} is not accepted: use numbers like {value}")
        setattr(arguments, name, given)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
