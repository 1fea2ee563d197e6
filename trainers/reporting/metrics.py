"""Measurements of a run, each counted once after a call of the inner loop."""

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.objective import add_steps, as_scalars
from strategies.common.types import SummaryLevel
from trainers.loop.loop import StepEvent
from trainers.loop.timing import Clock
from trainers.model.gradient_noise_scale import without_statistics
from trainers.pipeline_parallel.build import Pipeline
from trainers.reporting.pipeline_idle import PipelineIdleMeter
from trainers.reporting.step_phases import WARM_UP_CALLS, PhaseMeter
from trainers.run_dir.encoding import decoded, encoded
from trainers.run_dir.train_state import TrainCounters

# From sums over examples to the loss and metrics.
Results = Callable[[Mapping[str, Any]], dict[str, Any]]

# As long as the longest calls of a strategy, which end with many updates at once.
WINDOW_SECONDS = 0.5
# A run of days has a million windows, and one of 5,000 short steps takes 200 KB.
MOST_KEPT_WINDOWS = 1 << 9
# Columns of `_steps_of`.
_EXAMPLES, _SECONDS, _INPUT, _STEP, _DURATION = range(5)


class ProcessMetrics:
    """Measurements of all calls of `fit` of a process, which refer to none of them.

    Attributes:
      counters: Numbers of steps and examples of the run, which the outer loop counts,
        because they include steps that diverge.
      throughput: Speed of the run.
      staleness: Staleness of the run.
      is_continued: True if an earlier process has trained a part of the run.
    """

    def __init__(self) -> None:
        self.counters = TrainCounters()
        self.throughput = ThroughputMeter()
        self.staleness = Staleness()
        self.is_continued = False


class RunMetrics:
    """All measurements of a run, or of one of several calls of `fit`. A callback.

    Attributes:
      clock: Wall time by kind of work.
      process: Measurements of the run so far, in this process.
      window: Losses, metrics and times since the last line of metrics.jsonl.
      staleness: Staleness since the last line.
      idle: Idle time of pipeline stages since the last line.
      run_idle: Idle time of pipeline stages of the run.
      phases: Times within steps; None unless they are wanted.
    """

    def __init__(
        self,
        clock: Clock,
        process: ProcessMetrics,
        pipeline: Pipeline | None,
        results: Results,
        phases: PhaseMeter | None = None,
    ):
        """Starts a call of `fit`; only a partitioned model has a pipeline."""
        self.clock = clock
        self.process = process
        self.phases = phases
        self.process.throughput.begin()
        self.window = MetricsWindow(lambda sums: as_scalars(results(sums)))
        self.staleness = Staleness()
        self.idle = PipelineIdleMeter(pipeline)
        self.run_idle = PipelineIdleMeter(pipeline)
        self._meters: list[Callable[[StepEvent], None]] = [
            process.throughput,
            process.staleness,
            self.window,
            self.staleness,
            self.idle,
            self.run_idle,
        ]
        if phases is not None:
            self._meters.append(phases)

    def __call__(self, event: StepEvent) -> None:
        for meter in self._meters:
            meter(event)

    def begin_window(self, sums: Mapping[str, Any] | None = None) -> None:
        """Starts the next line of metrics.jsonl, with a checkpoint's sums of it."""
        self.window.restore(sums or {})
        self.staleness.reset()
        self.idle.reset()


class MetricsWindow:
    """Sums of losses, metrics and times over an interval of steps. A callback."""

    def __init__(self, results: Results) -> None:
        """Starts an interval."""
        self._results = results
        self.reset()

    def reset(self) -> None:
        """Starts a new interval."""
        self._sums: dict[str, Any] = {}
        self._num_steps = 0
        self._num_examples = 0.0
        self._call_seconds = 0.0
        self._step_seconds = 0.0
        self._input_seconds = 0.0

    def __call__(self, event: StepEvent) -> None:
        results = event.results
        add_steps(self._sums, results.sums)
        self._num_steps += results.applied_steps
        self._num_examples += results.sums["examples"].sum()
        self._call_seconds += event.call_seconds
        self._step_seconds += results.step_seconds.sum()
        self._input_seconds += results.input_seconds.sum()

    @property
    def is_empty(self) -> bool:
        """True if the interval has no steps yet."""
        return not self._sums

    def means(self) -> dict[str, float]:
        """Returns the loss and metrics of the examples of the interval."""
        return self._results(without_statistics(self._sums))

    def examples_per_second(self) -> float:
        return self._num_examples / max(self._call_seconds, 1e-9)

    def milliseconds(self) -> dict[str, float]:
        """Returns the average milliseconds of a step by part; see `_milliseconds`."""
        return _milliseconds(
            num_steps=self._num_steps,
            call_seconds=self._call_seconds,
            input_seconds=self._input_seconds,
            step_seconds=self._step_seconds,
        )

    def sums(self) -> dict[str, Any]:
        """Returns the sums for a checkpoint, numbers or nested lists of them.

        With them a resumed run writes the same next line. Sums that are not finite are
        encoded, because JSON has no such numbers.
        """
        sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
        return {name: part for name, v in sums.items() for part in encoded(v)}

    def restore(self, sums: Mapping[str, Any]) -> None:
        """Restores the sums of a checkpoint.

        Times start at zero, because they belong to a process.
        """
        self.reset()
        for name, value in sums.items():
            self._sums[name] = np.asarray(decoded(value), np.float64)


class Staleness:
    """Counts of updates by staleness. A callback.

    The staleness of an update is the number of other updates that were applied since
    its weights were read.
    """

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        self._by_worker: dict[str, Counter[int]] = {}

    def __call__(self, event: StepEvent) -> None:
        results = event.results
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
            f"staleness{suffix}/{figure}": float(value)
            for suffix, updates in counts.items()
            if updates
            for figure, value in _distribution(updates).items()
            if figure != "histogram"
        }

    def histogram(self) -> np.ndarray | None:
        """Returns one bucket per value: left edge, right edge and count, [n, 3]."""
        rows = [(k - 0.5, k + 0.5, self._all[k]) for k in sorted(self._all)]
        return np.array(rows, np.float64) if rows else None


def _distribution(counts: Counter[int]) -> dict[str, Any]:
    values = sorted(counts)
    numbers = np.array([counts[value] for value in values])
    # Indices of the first and the last update of each value, if all were sorted:
    # between them NumPy's percentiles are linear. A run has too many to list them.
    ends = numbers.cumsum()
    indices = np.stack([ends - numbers, ends - 1], axis=1).ravel()
    p50, p95 = np.interp(
        np.array([0.5, 0.95]) * (ends[-1] - 1), indices, np.repeat(values, 2)
    )
    return {
        "mean": float(np.average(values, weights=numbers)),
        "p50": float(p50),
        "p95": float(p95),
        "max": values[-1],
        "histogram": {str(k): counts[k] for k in values},
    }


class _Warmth(enum.IntEnum):
    """Kinds of calls of the inner loop; the speed is that of the last kind there is."""

    COLD = 0
    OBSERVES_FIRST = 1
    WARM = 2


class ThroughputMeter:
    """Step times and speed of a run, without the first calls of each fit. A callback.

    The first call of a fit that observes a step is left out as well: in it the runtime
    prepares the operations that observe, which takes as long as many steps.

    The speed is that of the median window of consecutive steps. All windows are equally
    long, because long ones have more of the rare slow steps. So runs of equal steps
    have an equal speed, also if the calls of one of them have more steps.

    A run without a program is one fit. If no fit has more calls than are left out, the
    calls that observe count, or else all except the first two of the run. All windows
    count up to `MOST_KEPT_WINDOWS`, and then every second, fourth and so on.
    """

    def __init__(self) -> None:
        self._num_calls = 0
        self._num_calls_of_fit = 0
        self._observed = SummaryLevel.NONE
        self._warmth = _Warmth.COLD
        self._forget()

    def _forget(self) -> None:
        self._windows: list[np.ndarray] = []
        self._num_windows = 0
        # One in so many windows is kept.
        self._stride = 1
        # Steps since the last window.
        self._steps: list[np.ndarray] = []
        self._seconds = 0.0

    def begin(self) -> None:
        """Begins a fit."""
        self._num_calls_of_fit = 0
        self._observed = SummaryLevel.NONE

    def __call__(self, event: StepEvent) -> None:
        self._num_calls += 1
        self._num_calls_of_fit += 1
        warmth = self._warmth_of(event)
        if warmth < self._warmth:
            return
        # At least one call remains, a later one.
        if warmth > self._warmth or self._num_calls <= WARM_UP_CALLS + 1:
            self._forget()
        self._warmth = warmth
        steps = _steps_of(event)
        self._steps.append(steps)
        self._seconds += float(steps[:, _SECONDS].sum())
        if self._seconds >= WINDOW_SECONDS:
            self._end_windows()

    def _warmth_of(self, event: StepEvent) -> _Warmth:
        is_first_observed = event.observed > self._observed
        self._observed = max(self._observed, event.observed)
        if self._num_calls_of_fit <= WARM_UP_CALLS:
            return _Warmth.COLD
        return _Warmth.OBSERVES_FIRST if is_first_observed else _Warmth.WARM

    def _end_windows(self) -> None:
        steps = np.concatenate(self._steps)
        times = steps[:, _SECONDS].cumsum()
        begin, began = 0, 0.0
        while times[-1] - began >= WINDOW_SECONDS:
            end = int(np.searchsorted(times, began + WINDOW_SECONDS)) + 1
            self._keep(steps[begin:end])
            begin, began = end, float(times[min(end, len(times)) - 1])
        self._steps, self._seconds = [steps[begin:].copy()], float(times[-1] - began)

    def _keep(self, window: np.ndarray) -> None:
        if self._num_windows % self._stride == 0:
            # A part of an array would keep the whole, which may be a long call.
            self._windows.append(window.copy())
        self._num_windows += 1
        if len(self._windows) > MOST_KEPT_WINDOWS:
            self._stride *= 2
            del self._windows[1::2]

    def summary(self) -> dict[str, Any]:
        """Returns the speed and milliseconds of a step, of single ones and the average.

        Percentiles of single steps are misleading under asynchronous updates, which
        come in bursts and end together at the end of each call. With 8 workers on 2
        cores the median time between two updates was 1.2 ms, and the mean 11.5 ms.
        """
        if not self._steps:
            return {"examples_per_second": None, "step_milliseconds": None}
        unfinished = np.concatenate(self._steps)
        durations = np.concatenate([*self._windows, unfinished])[:, _DURATION]
        p50, p90, p99 = map(float, np.percentile(1e3 * durations, (50, 90, 99)))
        # The median window, and not the mean of two, so that speed and times are of the
        # same steps. Of two in the middle it is the slower one.
        windows = sorted(
            self._windows or [unfinished], key=lambda steps: -_speed_of(steps)
        )
        median = windows[len(windows) // 2]
        return {
            "examples_per_second": _speed_of(median),
            "step_milliseconds": {
                "p50": p50,
                "p90": p90,
                "p99": p99,
                **_milliseconds(
                    len(median), *median[:, _SECONDS:_DURATION].sum(axis=0)
                ),
            },
        }


def _steps_of(event: StepEvent) -> np.ndarray:
    """Returns the steps of a call, [steps, 5].

    The columns are examples, seconds that add up to the time of the call, seconds of
    input, seconds with input, and the duration of a single step. Durations add up to
    the time of the call too: each has a part of Python's, which starts a call.
    """
    results = event.results
    durations = results.step_seconds
    columns = [results.sums["examples"], durations, results.input_seconds, durations]
    if results.workers is not None:
        # Steps come in the order of workers, not of time, so that all get the mean.
        columns = [np.full(len(column), np.mean(column)) for column in columns]
    examples, shares, input_seconds, step_seconds = columns
    seconds = _divided(event.call_seconds, shares)
    durations = _divided(event.call_seconds, durations)
    return np.stack([examples, seconds, input_seconds, step_seconds, durations], axis=1)


def _divided(seconds: float, shares: np.ndarray) -> np.ndarray:
    """Returns parts of a time in proportion to shares; equal parts of no shares."""
    if shares.sum() <= 0:
        shares = np.ones(len(shares))
    return seconds * shares / max(shares.sum(), 1e-9)


def _speed_of(steps: np.ndarray) -> float:
    examples, seconds = steps[:, _EXAMPLES:_INPUT].sum(axis=0)
    return float(examples / max(seconds, 1e-9))


def _milliseconds(
    num_steps: int, call_seconds: float, input_seconds: float, step_seconds: float
) -> dict[str, float]:
    """Returns the average milliseconds of a step: total, input, compute and rest.

    `rest` is the time in which Python starts the steps and fetches their results.
    """
    seconds = {
        "total": call_seconds,
        "input": input_seconds,
        "compute": step_seconds - input_seconds,
        "rest": call_seconds - step_seconds,
    }
    return {name: 1e3 * float(s) / max(num_steps, 1) for name, s in seconds.items()}
