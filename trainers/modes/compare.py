"""Comparison of several ways to train (`--mode=compare`)."""

import dataclasses
import importlib
import itertools
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, StopRequested
from strategies.common.text import plural
from trainers.cli.warm_start import starter_of
from trainers.config.config import Config
from trainers.experiments.arms import Arm, arms_of
from trainers.experiments.command import command_again, environment_of
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.experiments.compare.controlled_settings import (
    check_beginnings,
    check_configurations,
)
from trainers.experiments.compare.execution import Execution, command_in_words
from trainers.experiments.compare.existing_runs import arms_and_runs
from trainers.experiments.compare.progress import Progress
from trainers.experiments.compare.schedule import Turn
from trainers.experiments.compare.sequential import Look
from trainers.experiments.compare.stages import ComparedRuns, run_stages
from trainers.experiments.run_record import Run, commits_of, machines_of
from trainers.experiments.tune.report_part import (
    content_of,
    plan_in_words,
    words_of_arms,
    words_of_differences,
)
from trainers.experiments.tune.search import Search, SearchFailedError
from trainers.experiments.tune.study import journal_of
from trainers.experiments.tune.tuning import Tuning, tuning_of
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.run_dir.run_dir import tensorboard_command

_IMPORTED_BY_A_REPORT = (
    "scipy.optimize",
    "scipy.stats",
    "trainers.experiments.compare.report",
)


def compare(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Runs every arm with every seed, or reads existing runs, and writes the report.

    Returns:
      DONE if every arm completed at least once, for any verdicts. Otherwise DIVERGED if
        all runs of the other arms diverged, and BUG if not.

    Raises:
      UsageError: The arms cannot be compared, or the folder cannot be used.
    """
    folder = ComparisonDir(config.run.run_dir)
    try:
        if config.comparison.runs is not None:
            compared = _read(config, folder)
        else:
            compared = _run(config, folder, console)
    except StopRequested as stop:
        named = shlex.quote(f"--run_dir={folder.path}")
        console.fail(f"stopped: the same flags with {named} continue it.")
        return stop.exit_code
    except SearchFailedError as error:
        console.fail(str(error))
        return error.exit_code
    _report(config, folder, compared, console)
    return _exit_code(compared)


@dataclasses.dataclass(frozen=True, slots=True)
class _Compared:
    """Arms, all their runs, and the command of one run of each arm run here.

    Attributes:
      arms: Compared arms.
      ended: Runs of all arms, and why there are no more.
      commands: Shell command by name of the arm; empty for existing runs.
      tuning: Search before the comparison, as comparison.json has it; None without.
    """

    arms: Sequence[Arm]
    ended: ComparedRuns
    commands: Mapping[str, str]
    tuning: Mapping[str, Any] | None = None


def _read(config: Config, folder: ComparisonDir) -> _Compared:
    """Reads existing runs (`--runs`)."""
    allowed = config.comparison.allow_different or ()
    arms, runs = arms_and_runs(config.comparison.runs or ())
    check_configurations(arms, allowed)
    check_beginnings(runs, arms, allowed)
    num_seeds = len({run.seed for run in runs})
    folder.begin(arms, config.run.seed, None)
    # Who chose the runs knows how often they were looked at.
    ended = ComparedRuns(runs=runs, look=Look(num_seeds, num_seeds))
    return _Compared(arms, ended, commands={})


def _run(config: Config, folder: ComparisonDir, console: Console) -> _Compared:
    """Runs all arms.

    Raises:
      StopRequested: A signal arrived; the current run has ended.
    """
    settings = config.comparison
    arms = arms_of(config)
    # Before any run, because it only needs the settings.
    check_configurations(arms, settings.allow_different or ())
    tuning = tuning_of(config, arms)
    first, last = settings.looks
    is_fixed = first == last
    plan_of_search = None if tuning is None else tuning.in_words()
    begun = folder.begin(arms, config.run.seed, (first, last), plan_of_search)
    continued = ", continued" if begun.is_continued else ""
    runs = f"{last if is_fixed else f'{first} to {last}'} {plural('run', last)}"
    console.item(
        "compare",
        f"{len(arms)} arms, {runs} each{continued}: "
        f"{', '.join(arm.name for arm in arms)}",
    )
    console.item("output", folder.path)
    progress = Progress(console, left="left" if is_fixed else "to the next look")
    searched = None
    with starter_of(config) as starter, PreemptionSignals() as signals:
        # A comparison that is continued may have no runs left.
        if not begun.is_continued:
            for arm in arms:
                starter.begin(environment_of(arm.config))
        # While a template imports TensorFlow, which leaves a core to this process.
        for name in _IMPORTED_BY_A_REPORT:
            importlib.import_module(name)
        if tuning is not None:
            search = Search(folder.path, tuning, starter, signals, console)
            arms, searched = _search(arms, tuning, search, folder, console)
        with console.live(progress.table, remains=True):
            execution = Execution(folder, signals, starter)
            ended = run_stages(arms, config, begun.looks, execution, progress)
    commands = {
        arm.name: command_in_words(Turn(arm, config.run.seed), folder) for arm in arms
    }
    return _Compared(arms, ended, commands, searched)


def _search(
    arms: Sequence[Arm],
    tuning: Tuning,
    search: Search,
    folder: ComparisonDir,
    console: Console,
) -> tuple[tuple[Arm, ...], dict[str, Any]]:
    """Returns the arms with their best values, and the search for comparison.json."""
    console.item("tune", plan_in_words(tuning, len(arms)))
    found = search.run(arms)
    folder.write("study.json", journal_of(tuning, found))
    searched = content_of(tuning, found)
    for words in words_of_arms(searched):
        console.item("tuned", words)
    return tuple(each.arm for each in found), searched


def _report(
    config: Config,
    folder: ComparisonDir,
    compared: _Compared,
    console: Console,
) -> None:
    # Imported late: SciPy and matplotlib take a second, which would delay an error
    # message.
    from trainers.experiments.compare.analysis import conclude
    from trainers.experiments.compare.report import (
        origin,
        terminal_table,
        verdict_lines,
        write_report,
    )
    from trainers.experiments.tune.chart import section_of

    conclusion = conclude(
        compared.arms, compared.ended.runs, config.comparison, compared.ended.look
    )
    conclusion["remarks"] += [arm.in_words() for arm in compared.ended.dropped]
    for arm in conclusion["arms"]:
        arm["command"] = compared.commands.get(arm["name"])
    event_dir = _event_dir(compared, folder.event_dir(config) or folder.runs)
    command: list[str] = []
    if event_dir is not None:
        command = ["tensorboard", f"--logdir={event_dir}", "--host=localhost"]
    conclusion = {
        "title": f"Comparison of {', '.join(arm.name for arm in compared.arms)}",
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machines": machines_of(compared.ended.runs),
        "commits": commits_of(compared.ended.runs),
        "command": command_again(config, folder.path),
        "tensorboard": shlex.join(command),
        "shared_cores": _shared_cores(compared.ended.runs),
        "stopping": compared.ended.stopping,
        "tuning": compared.tuning,
        **conclusion,
    }
    sections = [] if compared.tuning is None else [section_of(compared.tuning)]
    write_report(folder, conclusion, compared.ended.runs, sections)
    for name, words in origin(conclusion):
        console.item(name, words)
    for line in terminal_table(conclusion):
        console.say(line)
    for arm_name, words in verdict_lines(conclusion):
        console.item("verdict", f"{arm_name}: {words}")
    if compared.tuning:
        for words in words_of_differences(compared.tuning):
            console.item("tuning", words)
    for remark in conclusion["remarks"]:
        console.item("note", remark)
    console.item("report", folder.path / "report.html")
    # Not that of the report, which may be read in another environment.
    if event_dir is not None:
        console.item("view", tensorboard_command(event_dir))


def _event_dir(compared: _Compared, new_runs: object) -> object | None:
    """Returns the folder or URL above all event files; None if there is none.

    Runs of this comparison are in `new_runs`; runs of --runs may be in any folders.
    """
    if compared.commands:
        return new_runs
    common = os.path.commonpath([run.path.absolute() for run in compared.ended.runs])
    # Runs on two disks have only the root in common, which holds both disks.
    return None if common == os.path.dirname(common) else common


def _shared_cores(runs: Sequence[Run]) -> int | None:
    """Returns the number of cores that all replicas share.

    None if there are GPUs, or tasks on several hosts.
    """
    cores = None
    for run in runs:
        hardware: dict[str, Any] = run.result.get("hardware") or {}
        if hardware.get("gpus") or _is_on_several_hosts(run):
            return None
        if run.is_completed and cores is None:
            cores = hardware.get("cpu_cores")
    return cores


def _is_on_several_hosts(run: Run) -> bool:
    # The hosts of an emulated network are on this machine.
    if run.result.get("emulated_bandwidth_mbit"):
        return False
    tasks = itertools.chain(*(run.result.get("cluster") or {}).values())
    return len({address.rpartition(":")[0] for address in tasks}) > 1


def _exit_code(compared: _Compared) -> ExitCode:
    runs = compared.ended.runs
    completed = {run.arm for run in runs if run.is_completed}
    statuses = {run.status for run in runs if run.arm not in completed}
    if completed == {arm.name for arm in compared.arms}:
        return ExitCode.DONE
    return ExitCode.DIVERGED if statuses == {"diverged"} else ExitCode.BUG
