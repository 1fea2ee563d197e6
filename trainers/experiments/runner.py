"""Short runs of an experiment, each in a separate process, and their folder."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from strategies.common.console import Console
from strategies.common.errors import ExitCode, StopRequested, UsageError
from strategies.common.files import FolderLock, new_folder, unusable
from strategies.devices.gpu import visible_gpus
from strategies.processes.starter import ProcessStarter
from trainers.cli.warm_start import starter_of
from trainers.config.config import Config
from trainers.config.model import DTYPES
from trainers.experiments.command import environment_of, measure_run
from trainers.experiments.run_record import Run, read_run
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.run_dir.checkpoint_names import check_writable_run
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.step_recording import Recording

_MOST_RUNS_AT_A_TIME = 4
# Of a run of several processes, in bytes.
_MEMORY_OF_A_RUN = 2 << 30


class ExperimentDir:
    """Paths of a verification, prediction or explanation.

    The constructor writes nothing.
    runs/<name>/ are ordinary run folders, logs/ holds the output of each run, and
    <mode>.json the results. Without --run_dir its name has the mode and the time.
    """

    def __init__(self, path: str | None, mode: str):
        self.path = pathlib.Path(path) if path else new_folder(mode)
        self.result = self.path / f"{mode}.json"
        self.mode = mode
        self._runs = self.path / "runs"
        self._logs = self.path / "logs"
        self._lock = FolderLock(self.path)

    def run_path(self, name: str) -> pathlib.Path:
        return self._runs / name

    def log_path(self, name: str) -> pathlib.Path:
        return self._logs / f"{name}.log"

    def begin(self) -> None:
        """Creates the folder.

        Raises:
          UsageError: The folder is not empty, or it cannot be written.
        """
        try:
            check_writable_run(self.path)
            if self.path.exists() and any(self.path.iterdir()):
                raise UsageError(
                    f"--run_dir={self.path} is not empty: choose a new or empty folder "
                    f"for --mode={self.mode}."
                )
            # Creates the folder too, which the lock needs.
            self._logs.mkdir(parents=True)
            self._lock.acquire()
        except OSError as error:
            raise unusable(self.path, error) from error

    def take_back(self) -> None:
        """Removes the folders that `begin` created, after the runs were refused."""
        for path in (self._runs, self._logs):
            shutil.rmtree(path, ignore_errors=True)
        # A folder that holds anything else, such as files of a program, stays.
        with contextlib.suppress(OSError):
            self.path.rmdir()


@dataclasses.dataclass(frozen=True, slots=True)
class Executed:
    """A run that has ended.

    Attributes:
      config: Configuration of the run, without its folder.
      run: Record of the run, read from its folder.
    """

    config: Config
    run: Run

    @property
    def num_replicas(self) -> int:
        return int(self.run.result["num_replicas"])

    @property
    def exit_code(self) -> int:
        """Exit code of its process; a negative one is the signal that ended it."""
        return int(self.run.measured.get("exit_code", ExitCode.BUG))

    @property
    def recording(self) -> Recording:
        """Recording of its steps; empty if steps were not recorded."""
        return Recording(self.run.path)


@dataclasses.dataclass(slots=True)
class Runner:
    """Short runs of an experiment, with its folder and the output of the process."""

    folder: ExperimentDir
    console: Console
    signals: PreemptionSignals
    starter: ProcessStarter
    # `Config` is frozen, so that equal settings are one key.
    _done: dict[Config, Executed] = dataclasses.field(default_factory=dict, init=False)

    def run(self, name: str, config: Config) -> Executed:
        """Runs a configuration in a new run folder.

        Raises:
          StopRequested: A signal arrived; the current run has ended.
        """
        with self.console.live(lambda: f"running   {name}"):
            return self._run(name, config)

    def run_all(self, runs: Sequence[tuple[str, Config]]) -> list[Executed]:
        """Runs configurations side by side, for results that do not depend on time.

        Runs of a program follow one another: its callbacks may write files and read
        them again, such as `BackupAndRestore`, and all share a working directory.

        Raises:
          StopRequested: A signal arrived; all runs have ended.
        """
        for _, config in runs:
            # Here and not in a thread, with which a template would end.
            self.starter.prepare(environment_of(config))
        running: list[str] = []
        are_programs = any(config.model.script is not None for _, config in runs)
        at_a_time = 1 if are_programs else _runs_at_a_time()

        def run(name: str, config: Config) -> Executed:
            running.append(name)
            try:
                return self._run(name, config)
            finally:
                running.remove(name)

        with (
            self.console.live(lambda: f"running   {', '.join(running)}"),
            ThreadPoolExecutor(at_a_time) as pool,
        ):
            return list(pool.map(run, *zip(*runs, strict=True)))

    def run_once(self, name: str, config: Config) -> Executed:
        """Runs a configuration, or returns its earlier run if there is one.

        The ablations of several strategies need the same runs of one device.
        """
        if config not in self._done:
            self._done[config] = self.run(name, config)
        return self._done[config]

    def _run(self, name: str, config: Config) -> Executed:
        if self.signals.requested:
            raise StopRequested(self.signals.exit_code)
        path, log = self.folder.run_path(name), self.folder.log_path(name)
        began = time.monotonic()
        config_of_run = config.replace(run_dir=str(path))
        measure_run(config_of_run, log, self.signals, self.starter)
        run = read_run(path, arm=name, seed=config.run.seed, log=log)
        seconds = time.monotonic() - began
        self.console.item("finished", f"{name}: {run.status}, {seconds:.0f} s")
        return Executed(_with_own_settings(config, run), run)

    def end_after(self, failed: Executed, name: str) -> ExitCode:
        """Ends the experiment with the exit code of a run that it needs.

        Raises:
          UsageError: The run rejects the settings.
        """
        if failed.exit_code == ExitCode.USAGE:
            raise UsageError(failed.run.reason)
        self.console.fail(f"{name} {failed.run.status}: {failed.run.reason}")
        was_signaled = failed.exit_code < 0
        code = 128 - failed.exit_code if was_signaled else failed.exit_code
        if code in [code for code in ExitCode if code]:
            return ExitCode(code)
        # A kill is no bug: the kernel's for lack of memory, or a person's.
        return ExitCode.PEER_LOST if was_signaled else ExitCode.BUG


def _with_own_settings(config: Config, run: Run) -> Config:
    """Returns a configuration with the types and batch that a user's code has chosen.

    How far apart two runs may be depends on them, and this process does not run the
    code.
    """
    if config.model.script is not None and run.result:
        used = RunDir(run.path).read_config()
        config = config.replace(global_batch_size=used.length.global_batch_size)
    policy = run.result.get("dtype_policy", config.model.dtype)
    if not config.model.is_custom or policy not in DTYPES:
        return config
    return config.replace(dtype=policy)


def with_runs(
    config: Config,
    console: Console,
    words: str,
    work: Callable[[Runner], ExitCode],
) -> ExitCode:
    """Begins an experiment, and calls a function that needs its short runs.

    It works until it returns or a signal arrives.

    Raises:
      UsageError: The folder cannot be used, or a run rejects the settings.
    """
    folder = ExperimentDir(config.run.run_dir, config.run.mode)
    folder.begin()
    console.item(folder.mode, words)
    console.item("output", folder.path)
    try:
        with starter_of(config) as starter, PreemptionSignals() as signals:
            return work(Runner(folder, console, signals, starter))
    except UsageError:
        # A rejected command leaves no folder.
        folder.take_back()
        raise
    except StopRequested as stop:
        mode = f"--mode={folder.mode}"
        console.fail(f"stopped: begin {mode} again, in another --run_dir.")
        return stop.exit_code


def _runs_at_a_time() -> int:
    """Returns how many runs may share this machine if nobody measures their times."""
    # A run takes nearly all memory of every GPU that it finds.
    if visible_gpus(os.environ):
        return 1
    fit_in_memory = psutil.virtual_memory().available // _MEMORY_OF_A_RUN
    return max(min(os.cpu_count() or 1, fit_in_memory, _MOST_RUNS_AT_A_TIME), 1)
