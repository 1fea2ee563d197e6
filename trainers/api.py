"""Python API for training, such as from a notebook.

A run is the same as from the command line and has its own process: TensorFlow
configures a machine's devices once per process, two strategies in one process interfere
with each other, and a cluster consists of several processes in any case.
"""

from __future__ import annotations

import dataclasses
import html
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from strategies.common.errors import ExitCode, UsageError
from strategies.common.files import new_folder
from strategies.processes.starter import ProcessStarter
from trainers.cli import flags
from trainers.config.config import Config
from trainers.config.program import SENT_PREFIX
from trainers.config.run import LARGEST_SEED
from trainers.config.used_settings import check_used
from trainers.experiments.measurement import started
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import default_path

if TYPE_CHECKING:
    import keras

# Folder of the top-level package: the clone, or site-packages.
_ROOT = pathlib.Path(__file__).parents[1]

# Attribute of a model: the seed of the last call of `fit` that has trained it.
_LAST_SEED = "_seed_of_last_fit"


def configure(**settings: Any) -> Config:
    """Returns a configuration from settings with the names of flags.

    Raises:
      UsageError: A name is unknown, or a value is not accepted.
    """
    config = Config().with_given(**settings)
    check_used(config)
    return config


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingResult:
    """Result of a run, read from its folder and displayed as a table.

    Attributes:
      path: Folder of the run.
      result: Content of result.json.
      metrics: Lines of metrics.jsonl, each with its `step`.
    """

    path: pathlib.Path
    result: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TrainingResult:
        """Reads the result of an existing run from its folder.

        Raises:
          UsageError: The folder holds no run, or the run has no result.
        """
        folder = RunDir.of_existing(os.fspath(path))
        result = folder.read_result()
        if result is None:
            raise UsageError(
                f"--run_dir={folder.path} has no result.json that can be read: train "
                "it to its end first."
            )
        return cls(folder.path, result, folder.metrics.rows())

    @property
    def status(self) -> str:
        """Status of the run: completed, diverged, preempted or failed."""
        return str(self.result["status"])

    @property
    def final(self) -> Mapping[str, float | None]:
        """Losses and metrics at the end by name, such as `eval_mean_absolute_error`.

        None where one was not measured.
        """
        return self.result["final"]

    @property
    def eval_loss(self) -> float | None:
        """Loss of evaluation at the end; None if it was not measured."""
        return self.final["eval_loss"]

    @property
    def eval_accuracy(self) -> float | None:
        """Accuracy of evaluation at the end; None if it was not measured."""
        return self.final["eval_accuracy"]

    @property
    def examples_per_second(self) -> float | None:
        """Median speed after warm-up; None for a run of a few steps."""
        return self.result["throughput"]["examples_per_second"]

    def curve(self, name: str) -> dict[int, float]:
        """Returns a quantity of metrics.jsonl, such as `train_loss`, by step."""
        return {row["step"]: row[name] for row in self.metrics if name in row}

    def __rich__(self) -> Table:
        table = Table(title=str(self.path), show_header=False)
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def _repr_html_(self) -> str:
        """Returns the table for notebooks."""
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
            speed = f"{self.examples_per_second:,.1f} examples/s"
            # Not the median of single steps: asynchronous ones come in bursts.
            seconds = result["examples_seen"] / self.examples_per_second
            if result["steps"]:
                speed += f", {1e3 * seconds / result['steps']:.2f} ms/step"
            yield "speed", speed
        yield "weights", str(result["weights_sha256"])[:12]


def train(config: Config | None = None, **settings: Any) -> TrainingResult:
    """Trains in a separate process and prints the output of that process.

    An interrupt (Ctrl-C, or a notebook's stop button) ends the run after the current
    step, with a checkpoint from which `resume="auto"` continues it.

    Args:
      config: Configuration of the run; None for all defaults.
      **settings: Changes to the configuration, by flag name.

    Returns:
      Result of the run; its status says whether the run was completed.

    Raises:
      UsageError: The settings are not accepted.
      RuntimeError: The run failed; the message contains its error.
    """
    config = (config or Config()).with_given(**settings)
    _check_mode(config)
    if config.run.run_dir is None:
        # Chosen here, because this process must find the result of the other one.
        config = config.replace(run_dir=str(default_path(config)))
    return _trained(config)


def fit(
    model: keras.Model,
    *args: Any,
    strategy: str = "mirrored",
    settings: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> keras.callbacks.History:
    """Trains a compiled model as `model.fit` does, under a strategy.

    The run has its own processes, in which callbacks run too, on copies. Afterwards
    the model has the trained weights, and its optimizer its state.

    Args:
      model: Compiled model, perhaps with classes of the notebook's cells.
      *args: Arguments of `keras.Model.fit`.
      strategy: Name of the strategy.
      settings: Further settings by flag name, such as `num_replicas`.
      **kwargs: Arguments of `keras.Model.fit` by name.

    Returns:
      What `fit` returns.

    Raises:
      UsageError: The settings, the model or an argument are not accepted.
      RuntimeError: The run failed, or was stopped before its end.
    """
    if "script" in (settings or {}):
        raise UsageError(
            "settings has a script, and trainers.fit trains the model that it is "
            "given: leave it out, or start python -m trainers.main --script."
        )
    # Keras takes two seconds to import, which other commands do not need.
    from trainers.keras_program import sent_call

    with tempfile.TemporaryDirectory(prefix=SENT_PREFIX) as folder:
        call = sent_call.SentCall(pathlib.Path(folder))
        given = {"strategy": strategy, **(settings or {})}
        given.setdefault("run_dir", str(new_folder(f"{strategy}-fit")))
        # Settings are checked before the model is sent.
        config = configure(**given, script=sent_call.__file__)
        _check_mode(config)
        if "seed" not in config.given:
            config = config.replace(seed=_seed_of(model, config))
        config = config.replace(script=str(call.send(model, args, kwargs)))
        result = _trained(config)
        if result.status != "completed":
            raise RuntimeError(f"the run in {result.path} was {result.status}.")
        # Not by Keras's own method, which would track it as a part of the model.
        object.__setattr__(model, _LAST_SEED, config.run.seed)
        return call.receive(model)


def _seed_of(model: keras.Model, config: Config) -> int:
    """Returns the seed of a call of `fit`: the updates of the model's optimizer so far.

    With an equal seed a later call would have the same order of examples and masks of
    dropout. So a model with a new optimizer has the seed after that of the last call
    that trained it. A call that is continued keeps its seed.
    """
    folder = RunDir(pathlib.Path(config.run.run_dir or ""))
    if config.run.resume == "auto" and folder.holds_a_run:
        return folder.read_config().run.seed
    # A model that is not compiled has none; it is refused when it is sent.
    optimizer = getattr(model, "optimizer", None)
    updates = int(getattr(optimizer, "iterations", 0))
    return max(updates, getattr(model, _LAST_SEED, -1) + 1) % (LARGEST_SEED + 1)


def _check_mode(config: Config) -> None:
    if config.run.mode != "train":
        raise UsageError(
            f"mode={config.run.mode!r} is not training: leave it out, or start "
            f"python -m trainers.main --mode={config.run.mode}."
        )


def _trained(config: Config) -> TrainingResult:
    path = config.run.run_dir or ""
    folder = RunDir(pathlib.Path(path))
    before = folder.read_result()
    exit_code, error = _run(flags.arguments_of(config))
    if exit_code == ExitCode.USAGE:
        raise UsageError(error)
    # A negative exit code: a signal has killed the process.
    has_failed = exit_code in (ExitCode.BUG, ExitCode.PEER_LOST) or exit_code < 0
    # A run that is interrupted before it begins writes no result, nor does an earlier
    # `fit` of a program that is trained again.
    has_result = folder.read_result() not in (None, before)
    if has_failed or (exit_code != ExitCode.DONE and not has_result):
        reason = error or "it has written no result"
        raise RuntimeError(f"the run ended with exit code {exit_code}: {reason}")
    return TrainingResult.read(path)


def _run(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs a command line, and returns its exit code and the last error it printed.

    Prints its output, and forwards interrupts to it.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "trainers.main", *arguments]
    error = ""
    environment = {**os.environ, "PYTHONPATH": path}
    with started(command, subprocess.PIPE, environment, ProcessStarter()) as process:
        while True:
            try:
                line = process.stdout.readline() if process.stdout else ""
                if not line:
                    return process.wait(), error
                if line.startswith("error: "):
                    error = line.removeprefix("error: ").rstrip("\n")
                # Not with rich, which shows each line as a table in a notebook.
                sys.stdout.write(line)
                sys.stdout.flush()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
