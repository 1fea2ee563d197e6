"""Training from Python, such as a notebook: the same run as from the command line.

A run has a process of its own. TensorFlow divides a machine's devices once for each
process, two strategies in one get into each other's way, and a cluster is several
processes in any case.
"""

from __future__ import annotations

import dataclasses
import html
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from strategies.common.errors import ExitCode, UsageError
from strategies.launcher.process import LAUNCHER_PID
from trainers.cli import flags
from trainers.config.config import Config, without_lists
from trainers.config.used_settings import check_used
from trainers.run_dir.run_dir import RunFolder, default_path

_ROOT = pathlib.Path(__file__).parents[1]


def configure(**settings: Any) -> Config:
    """A configuration, as flags of the same names would make it.

    Raises:
      UsageError: a name is unknown or a value not accepted.
    """
    config = Config().replace(**{n: without_lists(v) for n, v in settings.items()})
    check_used(config)
    return config


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a run came to, as its folder says. Shows itself as a table.

    Attributes:
      path: the run's folder.
      result: content of result.json.
      metrics: lines of metrics.jsonl, each with its `step`.
    """

    path: pathlib.Path
    result: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TrainingResult:
        """Of a run that was made before.

        Raises:
          UsageError: there is none, or it has no result.
        """
        folder = RunFolder.of_existing(os.fspath(path))
        result = folder.read_result()
        if result is None:
            raise UsageError(
                f"--run_dir={folder.path} has no result.json that can be read: train "
                "it to its end first."
            )
        return cls(folder.path, result, folder.read_metrics())

    @property
    def status(self) -> str:
        """completed, diverged or preempted."""
        return str(self.result["status"])

    @property
    def final(self) -> Mapping[str, float | None]:
        """Losses and metrics at the end by name, such as `eval_mean_absolute_error`.

        None where one was not measured.
        """
        return self.result["final"]

    @property
    def eval_loss(self) -> float | None:
        """At the end; None if it was not measured."""
        return self.final["eval_loss"]

    @property
    def eval_accuracy(self) -> float | None:
        """At the end; None if it was not measured."""
        return self.final["eval_accuracy"]

    @property
    def examples_per_second(self) -> float | None:
        """The median after warm-up; None of a run of a few steps."""
        return self.result["throughput"]["examples_per_second"]

    def curve(self, name: str) -> dict[int, float]:
        """A quantity of metrics.jsonl by step, such as `train_loss`."""
        return {row["step"]: row[name] for row in self.metrics if name in row}

    def __rich__(self) -> Table:
        table = Table(title=str(self.path), show_header=False)
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table><caption>{html.escape(str(self.path))}</caption>{rows}</table>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        result = self.result
        yield "status", f"{self.status}, {result['steps']:,} steps"
        yield "strategy", f"{result['strategy']}, {result['num_replicas']} replicas"
        for name, value in self.final.items():
            if value is not None:
                yield name, f"{value:.4f}"
        if self.examples_per_second is not None:
            milliseconds = result["throughput"]["step_milliseconds"]["p50"]
            per_step = f"{milliseconds:.2f} ms/step"
            yield "speed", f"{self.examples_per_second:,.1f} examples/s, {per_step}"
        yield "weights", str(result["weights_sha256"])[:12]


def train(config: Config | None = None, **settings: Any) -> TrainingResult:
    """Trains in a process of its own, and prints what that prints.

    An interrupt (Ctrl-C, or a notebook's stop button) ends the run after the step at
    hand, with a checkpoint from which `resume="auto"` continues it.

    Args:
      config: of the run; all defaults if it is left out.
      **settings: changes to it, by the names of flags.

    Returns:
      The result; its status says whether the run was completed.

    Raises:
      UsageError: the settings are not accepted.
      RuntimeError: the run failed, with its error.
    """
    config = (config or Config()).replace(
        **{name: without_lists(value) for name, value in settings.items()}
    )
    if config.run.mode != "train":
        raise UsageError(
            f"mode={config.run.mode!r} is not training: leave it out, or start "
            f"python -m trainers.main --mode={config.run.mode}."
        )
    if config.run.run_dir is None:
        config = config.replace(run_dir=str(default_path(config)))
    exit_code, error = _run(flags.arguments_of(config))
    if exit_code == ExitCode.USAGE:
        raise UsageError(error)
    if exit_code in (ExitCode.BUG, ExitCode.PEER_LOST) or exit_code < 0:
        raise RuntimeError(f"the run ended with exit code {exit_code}: {error}")
    return TrainingResult.read(config.run.run_dir or "")


def _run(arguments: Sequence[str]) -> tuple[int, str]:
    """Returns its exit code and the last error that it printed."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    error = ""
    with subprocess.Popen(
        [sys.executable, "-m", "trainers.main", *arguments],
        # The run ends with this process, however that ends.
        env={**os.environ, "PYTHONPATH": path, LAUNCHER_PID: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A terminal would send its interrupt to both.
        start_new_session=True,
    ) as process:
        for line in _lines(process):
            # Not by rich, which makes each line a table of its own in a notebook.
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if line.startswith("error: "):
                error = line.removeprefix("error: ")
        return process.wait(), error


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What a process prints, to its end; an interrupt is passed on."""
    while True:
        try:
            line = process.stdout.readline() if process.stdout else ""
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            continue
        if not line:
            return
        yield line.rstrip("\n")
