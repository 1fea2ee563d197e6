"""--mode=predict: how long a step would take on a cluster one does not have yet."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from strategies.cluster import Cluster
from strategies.gpus import visible_gpus
from strategies.settings import UsageError
from trainers import flags
from trainers.config import Config
from trainers.console import Console
from trainers.execution import Executed, Execution
from trainers.files import write_json
from trainers.folder_of_runs import FolderOfRuns
from trainers.outcome import ExitCode, StopRequested
from trainers.prediction.experiments import (
    REFERENCE,
    Experiment,
    arms_of,
    of_an_arm,
    on_one_device,
)
from trainers.stopping import StopSignals

if TYPE_CHECKING:
    from trainers.prediction.fitting import Fitted

_Runs = Sequence[tuple[Experiment, Executed]]


def predict(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Measures short runs on this machine, fits a model to them and extrapolates.

    Returns:
      DONE, or BUG if a run failed.

    Raises:
      UsageError: the settings are not accepted, by this process or by a run.
    """
    del cluster
    folder = FolderOfRuns(config.run.run_dir, "predict")
    num_gpus = len(visible_gpus(os.environ))
    experiments = [
        *on_one_device(config),
        *(e for arm in arms_of(config) for e in of_an_arm(arm, num_gpus)),
    ]
    folder.begin()
    console.say(f"predict   {_in_words(config)}")
    console.say(f"into      {folder.path}")
    try:
        with StopSignals() as signals:
            execution = Execution(
                folder,
                console,
                lambda: signals.requested,
                lambda: signals.exit_code,
            )
            runs = [(e, execution.run(e.name, e.config)) for e in experiments]
    except StopRequested as stop:
        console.fail("stopped: a prediction is not continued, but begun again.")
        return stop.exit_code
    failed = next((run for _, run in runs if not run.run.is_completed), None)
    if failed is not None:
        return _refuse(failed, folder, console)
    _report(config, folder, runs, console)
    return ExitCode.DONE


def _in_words(config: Config) -> str:
    network = config.prediction
    return (
        f"{config.model.model} on {config.data.dataset}, "
        f"{config.length.global_batch_size} examples a step; "
        f"{8e-9 / network.seconds_per_byte:g} Gbit/s, "
        f"{1e6 * network.seconds_per_message:g} us a message"
    )


def _refuse(failed: Executed, folder: FolderOfRuns, console: Console) -> ExitCode:
    if failed.exit_code == ExitCode.USAGE:
        folder.take_back()
        raise UsageError(failed.run.reason)
    console.fail(f"{failed.run.arm} {failed.run.status}: {failed.run.reason}")
    return ExitCode.BUG


def _report(
    config: Config, folder: FolderOfRuns, runs: _Runs, console: Console
) -> None:
    # SciPy takes half a second to import, too long before a refusal.
    from trainers.prediction.fitting import fit
    from trainers.prediction.report import best_lines, content, error_lines, table

    fitted = fit([(e, r) for e, r in runs])
    write_json(folder.result, content(config, fitted, _command(config)))
    _explain(fitted, console)
    for line in error_lines(fitted):
        console.say(line)
    for line in table(config, fitted):
        console.say(line)
    for line in best_lines(config, fitted):
        console.say(line)
    console.say(f"result    {folder.result}")


def _explain(fitted: Fitted, console: Console) -> None:
    compute = fitted.compute
    console.say(
        f"{REFERENCE} {1e3 * compute.seconds:.3g} ms a step and "
        f"{1e3 * compute.seconds_per_example:.3g} ms an example"
    )


def _command(config: Config) -> str:
    """What a person pastes to predict this again, into another folder."""
    words = flags.arguments_of(config.replace(run_dir=None))
    # The strategy of this configuration is one of those that are predicted.
    words = [word for word in words if not word.startswith("--strategy=")]
    return shlex.join(["python", "-m", "trainers.main", *words])
