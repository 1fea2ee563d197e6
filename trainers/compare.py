"""--mode=compare: which of several ways to train is better."""

from __future__ import annotations

import os
import pathlib
import shlex
import time
from collections.abc import Sequence
from typing import Any

from strategies.cluster import Cluster
from trainers import flags
from trainers.comparison.arms import Arm, arms_of
from trainers.comparison.execution import Execution, command_in_words
from trainers.comparison.existing import arms_and_runs
from trainers.comparison.figures import Run
from trainers.comparison.folder import ComparisonFolder
from trainers.comparison.held_fixed import (
    check_configurations,
    check_initial_weights,
    differing_settings,
)
from trainers.comparison.progress import Progress
from trainers.comparison.schedule import Turn, schedule
from trainers.config import Config
from trainers.console import Console
from trainers.outcome import ExitCode
from trainers.stopping import StopSignals


def compare(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Runs every arm with every seed, or reads what has run, and reports.

    Returns:
      DONE if every arm completed at least once, whatever the verdicts; otherwise
      DIVERGED if the arms that never did all diverged, and BUG if not.

    Raises:
      UsageError: the arms cannot be compared, or not in that folder.
    """
    settings = config.comparison
    allowed = settings.allow_different or ()
    arms: Sequence[Arm]
    folder = ComparisonFolder(config.run.run_dir)
    if settings.runs is not None:
        arms, runs = arms_and_runs(settings.runs)
        check_configurations(arms, allowed)
        check_initial_weights(runs, differing_settings(arms), allowed)
        folder.begin(arms, config.run.seed)
        commands = {}
    else:
        arms = arms_of(config)
        check_configurations(arms, allowed)
        turns = schedule(arms, config.run.seed, settings.seeds)
        commands = {t.arm.name: command_in_words(t, folder) for t in reversed(turns)}
        with StopSignals() as signals:
            found = _run(config, arms, turns, folder, signals, console)
        if found is None:
            console.fail(
                f"stopped: the same flags with --run_dir={folder.path} continue it."
            )
            return signals.exit_code
        runs = found
        check_initial_weights(runs, differing_settings(arms), allowed)
    _report(config, folder, arms, runs, commands, console)
    return _exit_code(arms, runs)


def _run(
    config: Config,
    arms: Sequence[Arm],
    turns: Sequence[Turn],
    folder: ComparisonFolder,
    signals: StopSignals,
    console: Console,
) -> list[Run] | None:
    """Every run of every arm, or None if stopped."""
    continued = folder.begin(arms, config.run.seed)
    console.say(
        f"compare   {len(arms)} arms, {config.comparison.seeds} seeds"
        f"{', continued' if continued else ''}: {', '.join(a.name for a in arms)}"
    )
    console.say(f"into      {folder.path}")
    progress = Progress(turns, console)
    execution = Execution(folder, lambda: signals.requested)
    with progress.shown():
        return execution.run(turns, progress.begun, progress.ended)


def _report(
    config: Config,
    folder: ComparisonFolder,
    arms: Sequence[Arm],
    runs: Sequence[Run],
    commands: dict[str, str],
    console: Console,
) -> None:
    # SciPy and matplotlib take a second to import, too long before a refusal.
    from trainers.comparison.conclusion import conclude
    from trainers.comparison.report import terminal_table, verdict_lines, write_report

    conclusion = conclude(arms, runs, config.comparison)
    for arm in conclusion["arms"]:
        arm["command"] = commands.get(arm["name"])
    shown = folder.runs if commands else _common_folder(runs)
    conclusion = {
        "title": f"Comparison of {', '.join(arm.name for arm in arms)}",
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": _command(config, folder),
        "tensorboard": shlex.join(
            ["tensorboard", f"--logdir={shown}", "--host=localhost"]
        ),
        "shared_cores": _shared_cores(runs),
        **conclusion,
    }
    write_report(folder, conclusion, runs)
    for line in terminal_table(conclusion):
        console.say(line)
    for arm_name, words in verdict_lines(conclusion):
        console.say(f"verdict   {arm_name}: {words}")
    for remark in conclusion["remarks"]:
        console.say(f"note      {remark}")
    console.say(f"report    {folder.path / 'report.html'}")
    console.say(f"look at   {conclusion['tensorboard']}")


def _command(config: Config, folder: ComparisonFolder) -> str:
    """What a person pastes to make this comparison again, or to continue it."""
    words = flags.arguments_of(config.replace(run_dir=str(folder.path)))
    # The strategy of a comparison's own configuration is one of those it compares.
    if config.comparison.strategies:
        words = [word for word in words if not word.startswith("--strategy=")]
    return shlex.join(["python", "-m", "trainers.main", *words])


def _common_folder(runs: Sequence[Run]) -> pathlib.Path:
    return pathlib.Path(os.path.commonpath([run.path.absolute() for run in runs]))


def _shared_cores(runs: Sequence[Run]) -> int | None:
    """The cores that all replicas share; None where there are GPUs."""
    for run in runs:
        hardware: dict[str, Any] = run.result.get("hardware") or {}
        if run.is_completed and not hardware.get("gpus"):
            return hardware.get("cpu_cores")
    return None


def _exit_code(arms: Sequence[Arm], runs: Sequence[Run]) -> ExitCode:
    completed = {run.arm for run in runs if run.is_completed}
    statuses = {run.status for run in runs if run.arm not in completed}
    if completed == {arm.name for arm in arms}:
        return ExitCode.DONE
    return ExitCode.DIVERGED if statuses == {"diverged"} else ExitCode.BUG
