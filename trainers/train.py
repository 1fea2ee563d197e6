"""--mode=train: a run from its configuration to its result."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from typing import Any

from strategies.attendance import workers_attended
from strategies.base import RunSteps, Strategy
from strategies.cluster import EVALUATOR, Cluster
from strategies.devices import describe, substitution
from strategies.settings import UsageError
from trainers.assembly import Assembly, assemble, create_strategy
from trainers.checkpoints import Checkpoints, weights_sha256
from trainers.clock import Clock
from trainers.config import Config
from trainers.console import Console
from trainers.description import describe_run, hyperparameters, tensorboard_command
from trainers.diagnosis import Diagnosis
from trainers.disk import Spell, disk_error
from trainers.inputs.data import Data
from trainers.loop import Always, CallLength, run_loop
from trainers.memory import capacity_of, estimate_memory, largest, warning_of
from trainers.outcome import DivergedError, ExitCode, NotSavedError, StopRequested
from trainers.pipeline.bubble import Bubble
from trainers.placement_log import PlacementRecorder, write_placements
from trainers.reporting import Reporting, in_words
from trainers.results import Throughput, build_result
from trainers.rollback import Rollbacks, agree_on_step
from trainers.run_dir import RunFolder
from trainers.staleness import Staleness
from trainers.stall import StallWatch
from trainers.stopping import StopSignals
from trainers.tally import Tally


def train(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains as the chief, and leaves the run folder behind.

    Raises:
      UsageError: the configuration cannot be run; nothing has been written.
    """
    folder = RunFolder.for_training(config)
    strategy = create_strategy(config, cluster)
    stall = StallWatch(
        config.guard.stall_timeout_seconds,
        cluster,
        console,
        lambda exit_code: strategy.dismiss(folder.ending_path(), exit_code),
    )
    try:
        with stall, _workers_attended(config, cluster, console):
            exit_code = _train(config, cluster, strategy, folder, console, stall)
    except UsageError:
        strategy.dismiss(folder.ending_path(), ExitCode.USAGE)
        raise

    def tell_others() -> None:
        strategy.dismiss(folder.ending_path(), exit_code)
        if EVALUATOR in cluster.addresses:
            folder.write_ending(f"{EVALUATOR}-0", exit_code)

    spell = Spell(console, "they see that the chief is gone")
    spell.attempt("other tasks cannot be told how the run has ended", tell_others)
    return exit_code


def _workers_attended(
    config: Config, cluster: Cluster, console: Console
) -> AbstractContextManager[None]:
    """Where workers serve, the loss of one need not end the run."""
    traits = config.strategy.traits
    if not traits.serving_roles:
        return contextlib.nullcontext()
    num_workers = len(cluster.addresses["worker"])
    num_required = config.strategy.num_required(num_workers)
    patience_seconds = config.strategy.peer_timeout_seconds
    return workers_attended(cluster, num_required, console.warn, patience_seconds)


def _train(
    config: Config,
    cluster: Cluster,
    strategy: Strategy,
    folder: RunFolder,
    console: Console,
    stall: StallWatch,
) -> ExitCode:
    clock = Clock(stall.note)
    assembly = assemble(config, strategy)
    stall.note("startup")
    stall.count(assembly.step)
    initial_weights_sha256 = weights_sha256(assembly.model)
    checkpoints = Checkpoints(
        folder.checkpoints,
        model=assembly.model,
        optimizer=assembly.optimizer,
        step=assembly.step,
        keep=config.report.keep_checkpoints,
        replica_state=strategy.replica_state(),
    )
    rollbacks = Rollbacks(
        checkpoints, assembly.rate_factor, config.guard.most_rollbacks, console.warn
    )
    state = checkpoints.restore_newest(console.warn) if folder.holds_a_run else None
    rollbacks.restore(state or {})
    strategy.share_from_chief(assembly.state_variables())
    first_step = int(assembly.step.numpy())
    if first_step >= assembly.train_steps and folder.read_result() is not None:
        console.say(f"{folder.path} is complete at step {first_step}: nothing to do.")
        return ExitCode.DONE
    folder.begin(config, first_step)
    checkpoints.remove_unfinished()
    console.open_log(folder.log_path(cluster.task))
    _introduce(assembly, folder, first_step, console)
    tally = Tally(
        attempted_steps=first_step,
        examples_seen=assembly.order.examples_before(first_step),
    )
    parts = (assembly, folder, checkpoints, console, clock, tally, rollbacks)
    reporting = Reporting(*parts)
    if state is not None:
        reporting.restore(state)
    if config.guard.rolls_back:
        if state is None:
            # Most rates that are too large show it before the first checkpoint.
            reporting.save_checkpoint()
        strategy.share_from_chief([])
    bubble = Bubble(assembly.pipeline)
    run = _Run(
        assembly,
        cluster,
        folder,
        reporting,
        console,
        clock,
        tally,
        rollbacks,
        bubble,
        stall,
    )
    return run.to_the_end(first_step, initial_weights_sha256)


def _introduce(
    assembly: Assembly, folder: RunFolder, first_step: int, console: Console
) -> None:
    strategy = assembly.strategy
    replicas = f"{strategy.num_replicas} replica{'s'[: strategy.num_replicas != 1]}"
    parts = assembly.config.strategy.gradient_accumulation_steps
    if parts > 1:
        replicas += f" of {parts} micro-batches"
    console.say(
        f"strategy  {strategy.name}: {replicas} on {describe(strategy.devices)}"
    )
    console.say(
        f"model     {assembly.config.model.model}, "
        f"{assembly.model.count_params():,} parameters"
    )
    for stage in assembly.pipeline.stages if assembly.pipeline else ():
        console.say(f"          {stage.in_words()}")
    console.say(
        f"data      {assembly.config.data.dataset}, "
        f"{assembly.data.train.num_examples:,} examples to train, "
        f"{assembly.data.evaluation.num_examples:,} held out{_best_loss(assembly.data)}"
    )
    resumed = f", continued at step {first_step}" if first_step else ""
    console.say(f"run       {folder.path}{resumed}")
    words = substitution(assembly.config.strategy.device_choice)
    if words:
        console.warn(words)
    name, estimate = largest(estimate_memory(assembly))
    console.say(f"memory    {estimate}")
    warning = warning_of(name, estimate, capacity_of(name))
    if warning is not None:
        console.warn(warning)
    if assembly.config.optimizer.lr_scaling != "none":
        console.say(f"rate      {_scaled_rate(assembly.config)}")
    update = assembly.config.optimizer
    if assembly.embeddings() and update.sparse_gradients and not update.updates_rows:
        decay = f" --weight_decay={update.weight_decay}" * bool(update.weight_decay)
        console.warn(
            f"--optimizer={update.optimizer}{decay} passes over every row of the "
            "embedding in every step; sgd and adagrad without --weight_decay change "
            "only the rows that were used"
        )


def _scaled_rate(config: Config) -> str:
    update, size = config.optimizer, config.length.global_batch_size
    warmup = f", after {update.warmup_steps:,} steps of warm-up"
    return (
        f"{update.peak_learning_rate(size):g}{warmup * bool(update.warmup_steps)}: "
        f"{update.learning_rate:g} of a global batch of "
        f"{update.base_global_batch_size} scaled to {size} ({update.lr_scaling})"
    )


def _best_loss(data: Data) -> str:
    loss = data.best_eval_loss
    return "" if loss is None else f", best eval_loss {loss:.4f}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """The part of training in which files are written."""

    assembly: Assembly
    cluster: Cluster
    folder: RunFolder
    reporting: Reporting
    console: Console
    clock: Clock
    tally: Tally
    rollbacks: Rollbacks
    bubble: Bubble
    stall: StallWatch
    throughput: Throughput = dataclasses.field(default_factory=Throughput)
    staleness: Staleness = dataclasses.field(default_factory=Staleness)

    def to_the_end(self, first_step: int, initial_weights_sha256: str) -> ExitCode:
        """Trains until the last step, a signal or a loss that is not finite.

        A last checkpoint or a result that cannot be written is a failure.
        """
        status, exit_code = "failed", ExitCode.BUG
        try:
            status, exit_code = self._until_stopped(first_step)
        except DivergedError as error:
            status, exit_code = "diverged", ExitCode.DIVERGED
            self.console.fail(str(error))
        except NotSavedError as error:
            exit_code = ExitCode.USAGE
            self.console.fail(str(error))
        finally:
            self.console.stop_progress()
            self.reporting.close()
            if not self._write_result(status, initial_weights_sha256):
                exit_code = ExitCode.USAGE
            self.assembly.strategy.close()
        self._conclude(status)
        self.assembly.strategy.share_from_chief([])
        return exit_code

    def _write_result(self, status: str, initial_weights_sha256: str) -> bool:
        """Returns whether there was room for it."""
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
        )
        try:
            self.folder.write_result(result)
        except OSError as error:
            words = disk_error(error)
            if words is None:
                raise
            # A run that has failed has said why, be it the same disk.
            if status != "failed":
                self.console.fail(
                    f"result.json could not be written ({words}): free space on the "
                    f"disk of {self.folder.path}, then finish with --resume=auto."
                )
            return False
        return True

    def _until_stopped(self, first_step: int) -> tuple[str, ExitCode]:
        ended = self._until_it_ends(first_step)
        self.reporting.require_saved()
        return ended

    def _until_it_ends(self, first_step: int) -> tuple[str, ExitCode]:
        batches = self._batches(first_step)
        self._trace(batches)
        with StopSignals() as signals:
            while True:
                try:
                    self._advance(first_step, batches, signals)
                except StopRequested as stop:
                    self.assembly.strategy.settle()
                    self.reporting.save_checkpoint()
                    return "preempted", stop.exit_code
                except DivergedError as error:
                    first_step = self._go_back(error)
                    batches = self._batches(first_step)
                else:
                    return "completed", ExitCode.DONE

    def _go_back(self, error: DivergedError) -> int:
        """Returns the step to go on from.

        Raises:
          DivergedError: there is none; nothing has been changed.
        """
        strategy = self.assembly.strategy
        strategy.settle()
        state = self.rollbacks.go_back(error)
        if self.assembly.config.guard.rolls_back:
            agree_on_step(strategy, None if state is None else self._step())
        if state is None:
            raise DivergedError(error.step, error.what, self.rollbacks.count) from error
        strategy.share_from_chief(self.assembly.state_variables())
        self.reporting.go_back(state, self._step())
        return self._step()

    def _step(self) -> int:
        return int(self.assembly.step.numpy())

    def _batches(self, first_step: int) -> Any:
        return self.assembly.strategy.distribute(self.assembly.batches(first_step))

    def _trace(self, batches: Any) -> None:
        assembly = self.assembly
        self.clock.started()
        with self.clock.measure("trace"):
            graph = assembly.run_steps.trace(batches)
        with self.clock.measure("summary"):
            summaries = self.reporting.summaries
            summaries.graph(graph)
            summaries.texts(describe_run(assembly))
            summaries.hparams(hyperparameters(assembly))

    def _advance(self, first_step: int, batches: Any, signals: StopSignals) -> None:
        assembly = self.assembly
        self.stall.begin(first_step)
        self.console.start_progress(first_step, assembly.train_steps)
        run_loop(
            self._run_steps(),
            batches,
            first_step=first_step,
            last_step=assembly.train_steps,
            call_length=CallLength(
                assembly.config.length.steps_per_loop,
                assembly.strategy.call_seconds,
            ),
            hooks=[
                Always(self.stall),
                Always(self.throughput),
                Always(self.staleness),
                Always(self.bubble),
                *self.reporting.hooks(),
                Always(signals),
            ],
            clock=self.clock,
            tally=self.tally,
            stop_requested=lambda: signals.requested,
            step_delay_seconds=1e-3 * assembly.config.length.step_delay_milliseconds,
            diagnose=Diagnosis(assembly.model, assembly.layer_state),
        )

    def _run_steps(self) -> RunSteps:
        """The inner loop, watched in its first call if that was asked for."""
        run_steps = self.assembly.run_steps
        if not self.assembly.config.device.log_device_placement:
            return run_steps
        return PlacementRecorder(
            run_steps,
            lambda placed: write_placements(
                placed,
                self.assembly,
                self.console,
                str(self.folder.log_path(self.cluster.task)),
                self.reporting.summaries,
            ),
        )

    def _conclude(self, status: str) -> None:
        final = dataclasses.asdict(self.reporting.final)
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
