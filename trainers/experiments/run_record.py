"""The record of one run, read from its folder only."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.signals import name_of
from trainers.experiments.measurement import read_measured
from trainers.run_dir.run_dir import RunDir

# Outcomes of the training itself: such a run is not started again.
_FINAL = ("completed", "diverged")
# Parts of the average step in result.json. The first is the sum of the others.
PARTS_OF_A_STEP = ("total", "input", "compute", "rest")
_ALWAYS = ("eval_loss", "eval_accuracy")
# The seconds of a run that was interrupted are those of its last process, and what was
# measured from outside includes steps that were lost.
_OF_THE_WHOLE_RUN = (
    *("startup_seconds", "trace_seconds", "train_seconds", "wall_seconds"),
    *("seconds_to_target_accuracy", "loopback_mib"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of an arm, with one number per metric.

    Attributes:
      arm: Name of the arm.
      seed: Seed of the run.
      path: Run folder.
      status: Status in result.json; "failed" if no result can be read.
      reason: One line that says why the run is not completed; empty if it is.
      result: Content of result.json; empty if there is none.
      metrics: Lines of metrics.jsonl.
      measured: Measurements from outside the run; empty if there are none.
      warnings: Warnings that the run has printed.
    """

    arm: str
    seed: int
    path: pathlib.Path
    status: str
    reason: str = ""
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def is_final(self) -> bool:
        return self.status in _FINAL

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"

    @property
    def has_trained(self) -> bool:
        """True if the training completed, also if the program failed after it."""
        return self.is_completed or bool(self.result.get("failed_after_fit"))

    @property
    def was_interrupted(self) -> bool:
        """True if tasks were started again, or the run was stopped and continued."""
        found = (_at(row, "seconds", "train") for row in self.metrics)
        seconds = [value for value in found if value is not None]
        if self.result.get("restarts") or self.result.get("continued"):
            return True
        # Older results do not say so. A process counts its time from zero.
        return seconds != sorted(seconds)

    def figures(self, target_accuracy: float | None = None) -> dict[str, float | None]:
        """Returns every metric by name; None where it was not measured.

        All are None unless the run completed.
        """
        result = self.result
        values = {
            "examples_per_second": _at(result, "throughput", "examples_per_second"),
            **{
                f"step_milliseconds_{part}": _at(
                    result, "throughput", "step_milliseconds", part
                )
                for part in ("p50", "p90", "p99", *PARTS_OF_A_STEP)
            },
            "seconds_to_target_accuracy": self._seconds_to(target_accuracy),
            "eval_accuracy": _at(result, "final", "eval_accuracy"),
            "eval_loss": _at(result, "final", "eval_loss"),
            "train_loss": _at(result, "final", "train_loss"),
            **{name: _at(result, "final", name) for name in self.other_metrics()},
            "startup_seconds": _at(result, "seconds", "startup"),
            "trace_seconds": _at(result, "seconds", "trace"),
            "train_seconds": _at(result, "seconds", "train"),
            "wall_seconds": _number(self.measured.get("wall_seconds")),
            "peak_memory_mib": self._peak_memory_mib(),
            "loopback_mib": _number(self.measured.get("loopback_mib")),
            "mean_staleness": _at(result, "staleness", "mean"),
        }
        if self.was_interrupted:
            values |= dict.fromkeys(_OF_THE_WHOLE_RUN)
        # Metrics of a run that diverged or failed would not be comparable.
        return values if self.is_completed else dict.fromkeys(values)

    def other_metrics(self) -> list[str]:
        """Returns the sorted names of evaluated metrics except loss and accuracy."""
        final = self.result.get("final") or {}
        names = [n for n in final if n.startswith("eval_") and n not in _ALWAYS]
        return sorted(names)

    def curve(self, name: str) -> dict[int, float]:
        """Returns the values of one metric of metrics.jsonl by step."""
        points = [(row["step"], _number(row.get(name))) for row in self.metrics]
        return {step: value for step, value in points if value is not None}

    def _seconds_to(self, accuracy: float | None) -> float | None:
        """Returns seconds of tracing and training until this evaluation accuracy."""
        if accuracy is None:
            return None
        for row in self.metrics:
            reached = _number(row.get("eval_accuracy"))
            seconds = [_at(row, "seconds", kind) for kind in ("trace", "train")]
            if reached is not None and reached >= accuracy and None not in seconds:
                # Time in evaluations and checkpoints does not count.
                return sum(value or 0.0 for value in seconds)
        return None

    def _peak_memory_mib(self) -> float | None:
        """Returns the peak memory of all tasks together, in MiB.

        A run of one process without a measurement from outside reports its own peak.
        """
        measured = _number(self.measured.get("peak_memory_mib"))
        if measured is None and self.result.get("cluster") is None:
            return _at(self.result, "peak_memory_mib", "chief-0")
        return measured


def read_run(
    path: pathlib.Path, *, arm: str, seed: int, log: pathlib.Path | None = None
) -> Run:
    """Reads a run folder, in any state that the run has left it in.

    The log has the warnings of a run, and why it has no result.
    """
    folder = RunDir(path)
    try:
        # The folder may come from somebody else; a link in it is refused.
        folder.check_own()
    except UsageError as error:
        return Run(arm=arm, seed=seed, path=path, status="failed", reason=str(error))
    measured = read_measured(path)
    result = folder.read_result()
    if result is None:
        status, reason = "failed", _why_no_result(measured, log)
    else:
        status = str(result.get("status"))
        reason = "" if status == "completed" else _reason("", log)
        if status == "completed" and not _is_whole(result):
            status, reason = "failed", "its result.json is damaged"
    metrics: list[dict[str, Any]] = []
    # It may be a folder.
    with contextlib.suppress(OSError):
        metrics = folder.metrics.rows()
    return Run(
        arm=arm,
        seed=seed,
        path=path,
        status=status,
        reason=reason,
        result=result or {},
        metrics=metrics,
        measured=measured,
        warnings=_lines_after("warning: ", log),
    )


def errors_after_training(runs: Sequence[Run]) -> list[str]:
    """Returns a remark on each error of a program after its training, each once.

    A training that an experiment has shortened may be too short for what follows.
    """
    reasons = [run.reason for run in runs if run.has_trained and not run.is_completed]
    return [
        f"the program has failed after its steps, which are used: {reason}"
        for reason in dict.fromkeys(reasons)
    ]


def machines_of(runs: Sequence[Run]) -> list[str]:
    """Describes the hardware that runs had, each kind once."""
    described = (_machine(run.result.get("hardware") or {}) for run in runs)
    return list(dict.fromkeys(machine for machine in described if machine))


def commits_of(runs: Sequence[Run]) -> list[str]:
    """Returns the commits of the code that runs were made with, each once."""
    versions = (run.result.get("versions") or {} for run in runs)
    return list(dict.fromkeys(str(v["commit"]) for v in versions if v.get("commit")))


def _machine(hardware: Mapping[str, Any]) -> str:
    parts = [str(hardware["cpu"])] if hardware.get("cpu") else []
    if hardware.get("cpu_cores"):
        parts.append(f"{hardware['cpu_cores']} cores")
    if hardware.get("memory_mib"):
        parts.append(f"{hardware['memory_mib'] / 1024:.0f} GiB")
    gpus = list(map(str, hardware.get("gpus") or ()))
    parts += [f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)]
    return ", ".join(parts)


def _is_whole(result: Mapping[str, Any]) -> bool:
    """Returns whether a result has every part that a comparison needs."""
    parts = ("throughput", "final", "seconds", "traits")
    return all(isinstance(result.get(part), Mapping) for part in parts)


def _why_no_result(measured: Mapping[str, Any], log: pathlib.Path | None) -> str:
    code = measured.get("exit_code")
    if code is None:
        return "it has no result.json that can be read"
    how = f"ended with exit code {code}"
    # A negative code is the signal that ended it. The file may hold anything.
    if isinstance(code, int) and code < 0:
        how = f"was ended by {name_of(-code)}"
    return _reason(f"it {how} and left no result", log)


def _reason(otherwise: str, log: pathlib.Path | None) -> str:
    """Returns the last error in a log, or `otherwise` if there is none."""
    errors = _lines_after("error: ", log)
    return errors[-1] if errors else otherwise


def _lines_after(label: str, log: pathlib.Path | None) -> list[str]:
    """Returns the lines of a log that begin with a label, without it, each once."""
    if log is None or not log.is_file():
        return []
    lines = dict.fromkeys(log.read_text("utf-8", errors="replace").splitlines())
    return [line.removeprefix(label) for line in lines if line.startswith(label)]


def _at(content: Mapping[str, Any], *path: str) -> float | None:
    value: Any = content
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return _number(value)


def _number(value: Any) -> float | None:
    # `bool` is a subclass of `int` in Python.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
