"""Explanation of the time of a step (`--mode=explain`)."""

from collections.abc import Iterator

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.files import write_atomically, write_json
from trainers.config.config import Config
from trainers.experiments.command import command_again
from trainers.experiments.run_record import errors_after_training
from trainers.experiments.runner import Executed, Runner, with_runs

# Enough for shares within a few percent of each other, in some seconds.
_DEFAULT_TRAIN_STEPS = 400


def explain(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains once with clocks inside the steps, and reports where the time went.

    Returns:
      DONE, or the exit code of the run if it failed.

    Raises:
      UsageError: This process or the run rejects the settings.
    """
    del cluster
    run = config.replace(mode="train", run_dir=None, step_phases=True)
    if run.length.train_steps is None and run.length.epochs is None:
        run = run.replace(train_steps=_DEFAULT_TRAIN_STEPS)
    return with_runs(
        config,
        console,
        f"{run.strategy.strategy}, {run.model.name}",
        lambda runner: _explain(config, run, runner),
    )


def _explain(config: Config, run: Config, runner: Runner) -> ExitCode:
    folder, console = runner.folder, runner.console
    executed = runner.run(run.strategy.strategy, run)
    if not executed.run.has_trained:
        return runner.end_after(executed, "the run")
    # Imported late: NumPy and jinja2 would delay an error message.
    from trainers.experiments.explain.breakdown import read_breakdown
    from trainers.experiments.explain.causes import Facts
    from trainers.experiments.explain.report import Report, trace_of

    breakdown = read_breakdown(executed.run.path)
    facts = Facts(
        breakdown=breakdown,
        config=executed.config,
        result=executed.run.result,
        measured=executed.run.measured,
    )
    report = Report(facts, [*_notes(run, executed)])
    content = report.content(command_again(config))
    write_json(folder.path / "trace.json", trace_of(breakdown))
    write_atomically(folder.path / "explain.html", report.page(content))
    write_json(folder.result, content)
    for line in report.lines():
        console.say(line)
    console.item("page", folder.path / "explain.html")
    console.item("trace", folder.path / "trace.json")
    console.item("result", folder.result)
    return ExitCode.DONE


def _notes(config: Config, executed: Executed) -> Iterator[str]:
    """Yields what the phases of this run cannot tell apart."""
    result = executed.run.result
    yield from errors_after_training([executed.run])
    if any((executed.run.path / "checkpoints").glob("phase-*")):
        yield "the program calls fit several times: these are the steps of the last one"
    if result["compilation"]["scope"] == "the loop":
        yield (
            "XLA compiles the loop, so that forward, backward and update are one "
            "phase, compute; --jit_compile=off tells them apart, and is another run"
        )
    if config.strategy.has_stale_gradients:
        yield "no replica waits for another; update includes sending the gradients"
