"""The runs of a comparison, each in a separate process."""

import dataclasses
import shlex
from collections.abc import Sequence

from strategies.common.errors import ExitCode
from strategies.processes.starter import ProcessStarter
from trainers.config.config import Config
from trainers.experiments.command import command_line, measure_run
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.experiments.compare.progress import Progress
from trainers.experiments.compare.schedule import Turn
from trainers.experiments.run_record import Run, read_run
from trainers.fault_tolerance.preemption import PreemptionSignals


@dataclasses.dataclass(slots=True)
class Execution:
    """Executor of the runs of a comparison that have not finished yet."""

    folder: ComparisonDir
    signals: PreemptionSignals
    starter: ProcessStarter
    # Error message by name of the arm.
    _refused: dict[str, str] = dataclasses.field(default_factory=dict, init=False)
    # Names of the arms that had their warm-up.
    _warm: set[str] = dataclasses.field(default_factory=set, init=False)

    def run(self, turns: Sequence[Turn], progress: Progress) -> list[Run]:
        """Executes the runs in their order, and returns all but the warm-ups.

        A finished run is not repeated, even if it diverged. An interrupted or failed
        run starts again from its beginning. An arm whose flags are refused is not tried
        with its other seeds; a program that fails is.

        Raises:
          StopRequested: A signal arrived; the current run has ended.
        """
        runs = []
        pending = {
            turn.arm.name
            for turn in turns
            if turn.seed is not None and not self._read(turn).is_final
        }
        for turn in turns:
            name = turn.arm.name
            if turn.seed is None:
                # A warm-up is only worth its time if a timed run of the arm follows.
                if name in pending - self._warm:
                    self._warm.add(name)
                    self._train(turn, progress)
                progress.ended(turn, None)
                continue
            run = self._read(turn)
            if not run.is_final and name in self._refused:
                reason = f"not run: {self._refused[name]}"
                run = dataclasses.replace(run, reason=reason)
            elif not run.is_final:
                exit_code = self._train(turn, progress)
                run = self._read(turn)
                # With a result, a program has failed after a training. A warm-up may
                # fail because it is short.
                if exit_code == ExitCode.USAGE and not run.result:
                    self._refused[name] = run.reason
            progress.ended(turn, run)
            runs.append(run)
        return runs

    def _train(self, turn: Turn, progress: Progress) -> int:
        """Trains from the beginning, and returns the exit code of the process."""
        progress.begun(turn)
        # A resumed run would be timed wrongly.
        self.folder.remove_run(turn)
        config, log = config_of(turn, self.folder), self.folder.log_path(turn)
        return measure_run(config, log, self.signals, self.starter).exit_code

    def _read(self, turn: Turn) -> Run:
        run = read_run(
            self.folder.run_path(turn),
            arm=turn.arm.name,
            seed=turn.seed or 0,
            log=self.folder.log_path(turn),
        )
        if run.measured:
            return run
        # A comparison that is killed or stopped at the end of a run, which may be
        # complete, has not measured it.
        return dataclasses.replace(run, status="failed")


def config_of(turn: Turn, folder: ComparisonDir) -> Config:
    """Returns the configuration of a run, with its folders."""
    path = folder.run_path(turn)
    config = turn.config.replace(run_dir=str(path))
    if turn.seed is None:
        # The metrics of a warm-up are discarded, and must not reach a tracker.
        return config.replace(tensorboard_dir=None, trackers=None)
    events = folder.event_dir(config)
    if events is not None:
        # The run adds the name of its folder, seed-<n>.
        config = config.replace(tensorboard_dir=f"{events}/{turn.arm.name}")
    if config.tracking.tracker_group is None and config.tracking.trackers:
        config = config.replace(tracker_group=folder.path.absolute().name)
    return config


def command_in_words(turn: Turn, folder: ComparisonDir) -> str:
    """Returns the command line of a run as a shell command to paste."""
    # The first word is the full path of this interpreter.
    return shlex.join(["python", *command_line(config_of(turn, folder))[1:]])
