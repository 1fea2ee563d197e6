"""Short runs, each in a process of its own."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable

from strategies.common.console import Console
from strategies.common.errors import ExitCode, StopRequested
from trainers.cli import flags
from trainers.config.config import Config
from trainers.config.model import DTYPES
from trainers.experiments.experiment_dir import FolderOfRuns
from trainers.experiments.measurement import measure
from trainers.experiments.run_record import Run, read_run
from trainers.fault_tolerance.preemption import StopSignals
from trainers.run_dir.step_recording import Recording


@dataclasses.dataclass(frozen=True, slots=True)
class Executed:
    """A run that has ended.

    Attributes:
      config: of the run, but for its folder.
      run: what its folder says.
      recording: of its steps; none if it was not recorded.
      exit_code: of its process.
    """

    config: Config
    run: Run
    recording: Recording
    exit_code: int

    @property
    def num_replicas(self) -> int:
        return int(self.run.result["num_replicas"])


class Execution:
    """Runs configurations, one after another, and says so."""

    def __init__(
        self,
        folder: FolderOfRuns,
        console: Console,
        stop_requested: Callable[[], bool],
        stop_exit_code: Callable[[], ExitCode],
    ):
        self._folder = folder
        self._console = console
        self._stop_requested = stop_requested
        self._stop_exit_code = stop_exit_code
        self._done: dict[Config, Executed] = {}

    def run(self, name: str, config: Config) -> Executed:
        """Runs a configuration into a folder of its own.

        Args:
          name: of its folder, and of the line that tells of it.
          config: but for its folder.

        Raises:
          StopRequested: a signal came; the run at hand has ended.
        """
        with self._console.live(lambda: f"running   {name}"):
            return self._run(name, config)

    def run_once(self, name: str, config: Config) -> Executed:
        """The same, unless this was called for that configuration before.

        Tests of one strategy's cause need the same runs of one device as another's.
        """
        if config not in self._done:
            self._done[config] = self.run(name, config)
        return self._done[config]

    def _run(self, name: str, config: Config) -> Executed:
        path, log = self._folder.run_path(name), self._folder.log_path(name)
        began = time.monotonic()
        command = command_line(config.replace(run_dir=str(path)))
        measured = measure(command, log, self._stop_requested)
        if measured is None:
            raise StopRequested(self._stop_exit_code())
        path.mkdir(parents=True, exist_ok=True)
        measured.write(path)
        run = read_run(path, arm=name, seed=config.run.seed, log=log)
        seconds = time.monotonic() - began
        self._console.say(f"ran       {name}: {run.status}, {seconds:.0f} s")
        config = _with_own_policy(config, run)
        return Executed(config, run, Recording(path), measured.exit_code)


def _with_own_policy(config: Config, run: Run) -> Config:
    """Returns a configuration with the types that the module of a model has set.

    How far apart two runs may be depends on them, and this process does not run the
    module.
    """
    policy = run.result.get("dtype_policy", config.model.dtype)
    if not config.model.is_custom or policy not in DTYPES:
        return config
    return config.replace(dtype=policy)


def with_runs(
    folder: FolderOfRuns,
    console: Console,
    work: Callable[[Execution], ExitCode],
    what: str,
) -> ExitCode:
    """Does what needs short runs, until it is done or a signal comes.

    Args:
      folder: that has been begun.
      console: told of each run.
      work: runs them.
      what: this is, such as "a verification".
    """
    try:
        with StopSignals() as signals:
            return work(
                Execution(
                    folder,
                    console,
                    lambda: signals.requested,
                    lambda: signals.exit_code,
                )
            )
    except StopRequested as stop:
        console.fail(f"stopped: {what} is not continued, but begun again.")
        return stop.exit_code


def command_again(config: Config) -> str:
    """What a person pastes to do the same again, into another folder."""
    words = flags.arguments_of(config.replace(run_dir=None))
    # The strategy of this configuration is one of those that --strategies names.
    words = [word for word in words if not word.startswith("--strategy=")]
    return shlex.join(["python", "-m", "trainers.main", *words])


def command_line(config: Config) -> list[str]:
    """Of a process that does what a configuration says."""
    return [sys.executable, "-m", "trainers.main", *flags.arguments_of(config)]
