"""Summary that is printed at the end of a run."""

from __future__ import annotations

import os
import pathlib
import shlex
import sys
from collections.abc import Mapping

from strategies.common.console import Console
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.metrics_writer import in_words
from trainers.reporting.result import ALWAYS_FINAL
from trainers.run_dir.run_dir import RunDir


def print_final_summary(
    console: Console,
    outcome: str,
    final: Mapping[str, float | None],
    metrics: RunMetrics,
    folder: RunDir,
) -> None:
    """Prints the outcome of a run, its speed and where to look at it."""
    # In the order of result.json.
    ordered = {**dict.fromkeys(ALWAYS_FINAL), **final}
    measured = {name: value for name, value in ordered.items() if value is not None}
    console.say(f"{outcome} | {in_words(measured)}" if measured else outcome)
    speed = metrics.throughput.summary()
    if speed["step_milliseconds"]:
        console.say(
            f"speed     {speed['examples_per_second']:,.1f} examples/s, "
            f"{metrics.throughput.milliseconds_per_step:.2f} ms/step"
        )
    idle = metrics.run_idle.in_words()
    if idle is not None:
        console.say(f"pipeline  {idle}")
    console.say(f"run       {folder.path}")
    if outcome.startswith("preempted"):
        words = shlex.join([f"--run_dir={folder.path}", "--resume=auto"])
        console.say(f"continue  with the same flags and {words}")
    console.say(f"view      {tensorboard_command(folder)}")


def tensorboard_command(folder: RunDir) -> str:
    """Returns the command that shows a run in TensorBoard, on this machine only."""
    own = str(folder.path / "tb")
    logdir = folder.path if folder.tensorboard == own else folder.tensorboard
    # The program of the same environment, which need not be on the PATH.
    program = pathlib.Path(sys.executable).with_name("tensorboard")
    if not program.exists():
        words = [sys.executable, "-m", "tensorboard.main"]
    else:
        relative = os.path.relpath(program)
        # A relative path is shorter and can be pasted in the current folder.
        words = [str(program) if relative.startswith("..") else relative]
    return shlex.join([*words, f"--logdir={logdir}", "--host=localhost"])
