"""Fits a performance model to short runs and estimates its error."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from strategies.gradient_compression.choice import Compression
from trainers.experiments.predict.communication_model import Exchange
from trainers.experiments.predict.compute_model import Compute, Measurement
from trainers.experiments.predict.experiments import ALONE, REFERENCE, Experiment
from trainers.experiments.predict.links import (
    has_size_of_links,
    is_over_links_too,
    over_links,
)
from trainers.experiments.predict.performance_model import Model, leave_one_out
from trainers.experiments.predict.run_lengths import RunLengths
from trainers.experiments.runner import Executed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FittedArm:
    """The model of one arm, with its measurements and errors.

    Attributes:
      name: Name of the arm.
      is_multi_process: True if its replicas can be on several machines.
      measurements: Measurements of its runs.
      model: Model fitted to all of them.
      errors: Relative error of each measurement, predicted by a model that was fitted
        to the other measurements.
      compression: Compression of its gradients; None if they are sent as they are.
      spread: Largest relative difference of two equal runs; None without repetitions.
    """

    name: str
    is_multi_process: bool
    measurements: Sequence[Measurement]
    model: Model
    errors: Sequence[float]
    compression: Compression | None = None
    spread: float | None = None

    @property
    def label(self) -> str:
        """Name in tables, where the arm follows the one without compression."""
        if self.compression is None:
            return self.name
        return f"with {self.compression.setting}"

    @property
    def median_error(self) -> float:
        return float(np.median(np.abs(self.errors)))

    @property
    def largest_error(self) -> float:
        return float(np.max(np.abs(self.errors)))

    @property
    def ballast_error(self) -> float | None:
        """Largest error of runs with ballast, which determine the cost of a byte."""
        pairs = zip(self.measurements, self.errors, strict=True)
        return max((abs(e) for m, e in pairs if m.size == "ballast"), default=None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Models of all arms and of one device.

    Attributes:
      compute: Compute time of one replica.
      reference: Measurements of one device that `compute` is fitted to.
      alone_seconds: Step time of one device as the user asked for it.
      arms: Models of all other arms.
      hardware: Hardware of this machine, as in result.json.
    """

    compute: Compute
    reference: Sequence[Measurement]
    alone_seconds: float
    arms: Sequence[FittedArm]
    hardware: Mapping[str, Any]


def fit(runs: Sequence[tuple[Experiment, Executed]]) -> Fitted:
    """Fits a model to the runs of each arm."""
    by_arm: dict[str, list[tuple[Experiment, Executed]]] = {}
    for experiment, executed in runs:
        by_arm.setdefault(experiment.arm, []).append((experiment, executed))
    reference = [median_of(equal) for equal in _equal_runs(by_arm.pop(REFERENCE))]
    (alone,) = (median_of(equal) for equal in _equal_runs(by_arm.pop(ALONE)))
    # One device comes first: all arms share its compute time.
    compute = Compute.fitted(reference)
    hardware = runs[0][1].run.result["hardware"]
    cores = hardware["cpu_cores"]
    arms = [_fit_arm(of_arm, compute, cores) for of_arm in by_arm.values()]
    return Fitted(
        compute=compute,
        reference=reference,
        alone_seconds=alone.step_seconds,
        arms=arms,
        hardware=hardware,
    )


def executed_with_links(
    experiments: Sequence[Experiment],
    has_links: bool,
    execute: Callable[[Experiment], Executed],
    repetitions: int,
) -> Iterator[tuple[Experiment, Executed]]:
    """Executes and yields runs, some of them also over emulated networks.

    Runs with long steps have fewer of them. All runs are repeated in rounds, because
    other work on the machine comes and goes.
    """
    first_round = []
    for experiment, executed in _executed_once(experiments, has_links, execute):
        first_round.append(experiment)
        yield experiment, executed
    for repetition in range(2, repetitions + 1):
        for experiment in first_round:
            again = dataclasses.replace(experiment, repetition=repetition)
            yield again, execute(again)


def _executed_once(
    experiments: Sequence[Experiment],
    has_links: bool,
    execute: Callable[[Experiment], Executed],
) -> Iterator[tuple[Experiment, Executed]]:
    lengths = RunLengths()
    for planned in experiments:
        experiment = lengths.limited(planned)
        executed = execute(experiment)
        yield experiment, executed
        local = measured(experiment, executed)
        lengths.add(experiment, local.step_seconds)
        if not has_links or not is_over_links_too(experiment, experiments):
            continue
        if has_size_of_links(experiment, local.gradient_bytes):
            traffic = exchange_of(experiment, executed).traffic(local.num_replicas)
            # Their number of steps depends on how long one takes here.
            for each in over_links(
                experiment,
                executed.run.result["steps"],
                local.step_seconds,
                traffic.bytes_on_a_link,
            ):
                yield each, execute(each)


def measured(experiment: Experiment, executed: Executed) -> Measurement:
    """Returns the measurement of a run that a model is fitted to."""
    milliseconds = executed.run.result["throughput"]["step_milliseconds"]
    # The median is robust against a few slow steps. Asynchronous updates come in
    # bursts: most are close to the one before.
    figure = "p50" if experiment.config.strategy.is_synchronous else "total"
    return Measurement(
        num_replicas=experiment.num_replicas,
        examples=experiment.examples,
        step_seconds=milliseconds[figure] / 1e3,
        gradient_bytes=exchange_of(experiment, executed).gradient_bytes,
        size=experiment.size,
        bandwidth_mbit=experiment.bandwidth_mbit,
    )


def exchange_of(experiment: Experiment, executed: Executed) -> Exchange:
    """Returns how a run exchanged gradients and of how many bytes; 0 if alone."""
    strategy = experiment.config.strategy
    kind, compression = strategy.traits.exchange, strategy.compression
    # Servers decode what each worker sends, without another exchange between replicas.
    if compression is not None and kind == "ring":
        kind = compression.exchange
    exchange = Exchange(
        kind=kind,
        is_synchronous=strategy.is_synchronous,
        gradient_bytes=0.0,
        num_servers=strategy.num_ps or 1,
    )
    communication = executed.run.result["communication"]
    if communication is None:
        return exchange
    sent = communication["bytes_per_step_per_replica"]
    gradient_bytes = exchange.gradient_bytes_from(sent, experiment.num_replicas)
    return dataclasses.replace(exchange, gradient_bytes=gradient_bytes)


def _fit_arm(
    runs: Sequence[tuple[Experiment, Executed]], compute: Compute, cores: int
) -> FittedArm:
    first, _ = runs[0]
    equal_runs = _equal_runs(runs)
    measurements = [median_of(equal) for equal in equal_runs]
    exchange = exchange_of(*runs[0])
    return FittedArm(
        name=first.arm,
        is_multi_process=first.config.strategy.traits.multi_process,
        measurements=measurements,
        model=Model.fitted(measurements, compute, exchange, cores),
        errors=leave_one_out(measurements, compute, exchange, cores),
        compression=first.config.strategy.compression,
        spread=max(map(_spread, equal_runs)) if len(runs) > len(equal_runs) else None,
    )


def _equal_runs(
    runs: Sequence[tuple[Experiment, Executed]],
) -> list[list[Measurement]]:
    """Returns the measurements of all repetitions of each run."""
    found: dict[str, list[Measurement]] = {}
    for run in runs:
        found.setdefault(run[0].name_of_equal, []).append(measured(*run))
    return list(found.values())


def median_of(equal: Sequence[Measurement]) -> Measurement:
    """Returns a measurement with the median step time of equal runs."""
    seconds = float(np.median([m.step_seconds for m in equal]))
    return dataclasses.replace(equal[0], step_seconds=seconds)


def _spread(equal: Sequence[Measurement]) -> float:
    """Returns the longest step time of equal runs relative to the shortest, less 1."""
    seconds = [m.step_seconds for m in equal]
    return max(seconds) / min(seconds) - 1
