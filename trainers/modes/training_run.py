"""The chief's training from first step to result.

This part of the run writes files.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import (
    DivergedError,
    ExitCode,
    NotSavedError,
    StopRequested,
)
from strategies.common.types import LoopFunction
from strategies.common.write_errors import disk_error
from trainers.fault_tolerance.non_finite import Diagnosis
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.fault_tolerance.rollback import Rollbacks, agree_on_step
from trainers.fault_tolerance.watchdog import Watchdog
from trainers.loop.builder import TrainingParts
from trainers.loop.loop import Always, StepsPerLoop, run_loop
from trainers.loop.timing import Clock
from trainers.reporting.metrics import PipelineIdleMeter, Staleness
from trainers.reporting.placement_log import PlacementRecorder, write_placements
from trainers.reporting.reporter import Reporter, in_words
from trainers.reporting.result import ALWAYS_FINAL, ThroughputMeter, build_result
from trainers.reporting.run_description import (
    describe_run,
    hyperparameters,
    tensorboard_command,
)
from trainers.reporting.tracking.base import code_version
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.train_state import TrainCounters


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingRun:
    """Run whose folder has been created.

    Attributes:
      assembly: what is trained.
      cluster: this process's place.
      folder: of the run.
      reporting: writes metrics, summaries and checkpoints.
      console: for people.
      clock: where the time goes.
      tally: what has been done.
      rollbacks: what it does if a step diverges.
      bubble: how long the stages of a model were idle.
      stall: is told of progress.
      throughput: Speed of the steps.
      staleness: Staleness of the updates.
      commit: Version of the code when the run began; None if unknown.
    """

    assembly: TrainingParts
    cluster: Cluster
    folder: RunDir
    reporting: Reporter
    console: Console
    clock: Clock
    tally: TrainCounters
    rollbacks: Rollbacks
    bubble: PipelineIdleMeter
    stall: Watchdog
    throughput: ThroughputMeter = dataclasses.field(default_factory=ThroughputMeter)
    staleness: Staleness = dataclasses.field(default_factory=Staleness)
    commit: str | None = dataclasses.field(default_factory=code_version)

    def run_to_end(self, first_step: int, initial_weights_sha256: str) -> ExitCode:
        """Trains until the last step, a signal or a loss that is not finite.

        A failure to write the last checkpoint or the result is an error.

        Args:
          first_step: Number of updates already applied.
          initial_weights_sha256: Digest of the initial weights.

        Returns:
          Exit code of the run.
        """
        status, exit_code = "failed", ExitCode.BUG
        try:
            status, exit_code = self._train_and_export(first_step)
        except DivergedError as error:
            status, exit_code = "diverged", ExitCode.DIVERGED
            self.console.fail(str(error))
        except NotSavedError as error:
            exit_code = ExitCode.USAGE
            self.console.fail(str(error))
        except Exception:
            # Whatever could not be written there, this says why.
            self.folder.require()
            raise
        finally:
            # In `finally`: every end of a run writes a result, an unexpected exception
            # included.
            self.console.stop_progress()
            self.reporting.close()
            if not self._write_result(status, initial_weights_sha256):
                exit_code = ExitCode.USAGE
            self.assembly.strategy.close()
        self._print_summary(status)
        # Barrier: the other processes end only when the chief has written its files.
        self.assembly.strategy.broadcast_from_chief([])
        return exit_code

    def _write_result(self, status: str, initial_weights_sha256: str) -> bool:
        """Writes result.json and returns whether the disk had room for it."""
        result = build_result(
            self.assembly,
            self.cluster,
            status=status,
            final=self.reporting.final,
            tally=self.tally,
            throughput=self.throughput,
            staleness=self.staleness,
            bubble=self.bubble,
            clock=self.clock,
            rollbacks=self.rollbacks.count,
            initial_weights_sha256=initial_weights_sha256,
            commit=self.commit,
        )
        self.reporting.tell_result(result)
        try:
            self.folder.write_result(result)
        except OSError as error:
            words = disk_error(error)
            if words is None:
                raise
            # A failed run has already printed its cause, which may be the same disk.
            if status != "failed":
                self.console.fail(
                    f"result.json could not be written ({words}): free space on the "
                    f"disk of {self.folder.path}, then finish with --resume=auto."
                )
            return False
        return True

    def _train_and_export(self, first_step: int) -> tuple[str, ExitCode]:
        ended = self._train_with_rollback(first_step)
        self.reporting.require_saved()
        # A stopped run may be resumed; only a completely trained model is exported.
        if ended[1] == ExitCode.DONE:
            self.reporting.export_last()
        return ended

    def _train_with_rollback(self, first_step: int) -> tuple[str, ExitCode]:
        batches = self._batches(first_step)
        self._trace(batches)
        with PreemptionSignals() as signals:
            while True:
                try:
                    self._advance(first_step, batches, signals)
                except StopRequested as stop:
                    # The checkpoint reads variables, which must be equal in all
                    # processes.
                    self.assembly.strategy.settle()
                    self.reporting.save_checkpoint()
                    return "preempted", stop.exit_code
                except DivergedError as error:
                    first_step = self._go_back(error)
                    batches = self._batches(first_step)
                else:
                    return "completed", ExitCode.DONE

    def _go_back(self, error: DivergedError) -> int:
        """Rolls back and returns the step to continue from.

        Raises:
          DivergedError: No rollback is possible; nothing has been changed.
        """
        strategy = self.assembly.strategy
        strategy.settle()
        state = self.rollbacks.go_back(error)
        if self.assembly.config.guard.rolls_back:
            # The other processes wait for this broadcast after every divergence.
            agree_on_step(strategy, None if state is None else self._step())
        if state is None:
            raise DivergedError(error.step, error.what, self.rollbacks.count) from error
        strategy.broadcast_from_chief(self.assembly.state_variables())
        self.reporting.go_back(state, self._step())
        return self._step()

    def _step(self) -> int:
        return int(self.assembly.step.numpy())

    def _batches(self, first_step: int) -> Any:
        return self.assembly.strategy.distribute(self.assembly.batches(first_step))

    def _trace(self, batches: Any) -> None:
        assembly = self.assembly
        # Tracing ends start-up and is timed separately.
        self.clock.started()
        with self.clock.measure("trace"):
            graph = assembly.loop_function.trace(batches)
        with self.clock.measure("summary"):
            summaries = self.reporting.summaries
            summaries.graph(graph)
            summaries.texts(describe_run(assembly))
            summaries.hparams(hyperparameters(assembly))

    def _advance(
        self, first_step: int, batches: Any, signals: PreemptionSignals
    ) -> None:
        assembly = self.assembly
        self.stall.begin(first_step)
        self.console.start_progress(first_step, assembly.train_steps)
        run_loop(
            self._run_steps(),
            batches,
            first_step=first_step,
            last_step=assembly.train_steps,
            call_length=StepsPerLoop(
                assembly.config.length.steps_per_loop,
                assembly.strategy.call_seconds,
            ),
            callbacks=[
                # First, so that the watchdog knows the step before slow callbacks run.
                Always(self.stall),
                Always(self.throughput),
                Always(self.staleness),
                Always(self.bubble),
                *self.reporting.callbacks(),
                # Last, because it raises: the callbacks of the step have run.
                Always(signals),
            ],
            clock=self.clock,
            tally=self.tally,
            stop_requested=lambda: signals.requested,
            step_delay_seconds=1e-3 * assembly.config.length.step_delay_milliseconds,
            diagnose=Diagnosis(assembly.model, assembly.layer_state),
        )

    def _run_steps(self) -> LoopFunction:
        """Returns the inner loop, which records its placement if that is requested."""
        loop_function = self.assembly.loop_function
        if not self.assembly.config.device.log_device_placement:
            return loop_function
        return PlacementRecorder(
            loop_function,
            lambda placed: write_placements(
                placed,
                self.assembly,
                self.console,
                str(self.folder.log_path(self.cluster.task)),
                self.reporting.summaries,
            ),
        )

    def _print_summary(self, status: str) -> None:
        # In the order of result.json, whatever was measured first.
        final = {**dict.fromkeys(ALWAYS_FINAL), **self.reporting.final}
        measured = {name: value for name, value in final.items() if value is not None}
        step = int(self.assembly.step.numpy())
        line = f"{status} | step {step}"
        self.console.say(f"{line} | {in_words(measured)}" if measured else line)
        speed = self.throughput.summary()
        if speed["step_milliseconds"]:
            self.console.say(
                f"speed     {speed['examples_per_second']:,.1f} examples/s, "
                f"{speed['step_milliseconds']['p50']:.2f} ms/step"
            )
        idle = self.bubble.in_words()
        if idle is not None:
            self.console.say(f"pipeline  {idle}")
        self.console.say(f"run       {self.folder.path}")
        self.console.say(f"look at   {tensorboard_command(self.folder)}")
