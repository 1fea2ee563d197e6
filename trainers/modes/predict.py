"""Prediction of step times on a larger cluster (`--mode=predict`)."""

import os
from collections.abc import Sequence

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.files import write_json
from strategies.devices.gpu import visible_gpus
from trainers.config.config import Config
from trainers.experiments.command import command_again
from trainers.experiments.predict.experiments import (
    Experiment,
    arms_of,
    check_replicas,
    of_an_arm,
    on_one_device,
)
from trainers.experiments.predict.links import (
    BANDWIDTHS_MBIT,
    is_over_links_too,
    obstacle_to_links,
)
from trainers.experiments.runner import Runner, with_runs


def predict(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Measures short runs on this machine, fits a model and extrapolates.

    Returns:
      DONE, or the exit code of a run that failed.

    Raises:
      UsageError: This process or a run rejects the settings.
    """
    del cluster
    if config.model.script is not None and "global_batch_size" not in config.given:
        raise UsageError(
            "--mode=predict does not know the batch of "
            f"--script={config.model.script}, and measures parts of it: add "
            "--global_batch_size."
        )
    num_gpus = len(visible_gpus(os.environ))
    experiments = [
        *on_one_device(config),
        *(e for arm in arms_of(config) for e in of_an_arm(arm, num_gpus)),
    ]
    check_replicas(config.prediction.replica_counts, experiments)
    repeated = [
        e for e in experiments if e.size == "own" and is_over_links_too(e, experiments)
    ]
    obstacle = obstacle_to_links() if repeated else None
    num_runs = len(experiments)
    if obstacle is None:
        num_runs += len(repeated) * len(BANDWIDTHS_MBIT)
    num_runs *= config.prediction.repetitions
    return with_runs(
        config,
        console,
        f"{_in_words(config)}; {num_runs} short runs",
        lambda runner: _predict(config, experiments, runner, obstacle),
    )


def _predict(
    config: Config,
    experiments: Sequence[Experiment],
    runner: Runner,
    obstacle: str | None,
) -> ExitCode:
    # Imported late: SciPy takes half a second, which would delay an error message.
    from trainers.experiments.predict.fitting import executed_with_links, fit
    from trainers.experiments.predict.report import Report

    folder, console = runner.folder, runner.console
    if obstacle is not None:
        console.warn(
            f"no network is emulated, bytes on the wire are not measured: {obstacle}"
        )
    runs = []
    for experiment, executed in executed_with_links(
        experiments,
        obstacle is None,
        lambda e: runner.run(e.name, e.config),
        config.prediction.repetitions,
    ):
        if not executed.run.has_trained:
            return runner.end_after(executed, executed.run.arm)
        runs.append((experiment, executed))
    report = Report(config, fit(runs))
    write_json(folder.result, report.content(command_again(config)))
    for line in report.lines():
        console.say(line)
    console.item("result", folder.result)
    return ExitCode.DONE


def _in_words(config: Config) -> str:
    network = config.prediction
    is_program = config.model.script is not None
    data = "its own data" if is_program else config.data.dataset
    return (
        f"{config.model.name} on {data}, "
        f"{config.length.global_batch_size} examples a step; "
        f"{network.gigabits_per_second:g} Gbit/s, "
        f"{1e6 * network.seconds_per_message:g} us a message"
    )
