"""Training in a process other than the chief.

It runs the same steps and writes no files.
"""

from __future__ import annotations

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import DivergedError, ExitCode, StopRequested
from trainers.config.config import Config
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.fault_tolerance.rollback import agree_on_step
from trainers.fault_tolerance.watchdog import Watchdog
from trainers.loop.builder import TrainingParts, assemble, create_strategy
from trainers.loop.loop import Always, StepEvent, StepsPerLoop, When, run_loop
from trainers.loop.timing import Clock
from trainers.reporting.turns import require_finite_weights, turns
from trainers.run_dir.train_state import TrainCounters


def follow(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Takes part in every step and evaluation until the chief ends the run.

    Calls of the inner loop end at the same steps as the chief's, because a call
    contains all-reduces over all processes.

    Args:
      config: Configuration of the run.
      cluster: This process's place in the cluster.
      console: Output of the process.

    Raises:
      UsageError: The configuration cannot be run here.
    """
    strategy = create_strategy(config, cluster)
    with Watchdog(config.guard.stall_timeout_seconds, cluster, console) as stall:
        return _follow(config, cluster, strategy, console, stall)


def _follow(
    config: Config,
    cluster: Cluster,
    strategy: Strategy,
    console: Console,
    stall: Watchdog,
) -> ExitCode:
    assembly = assemble(config, strategy)
    stall.note("startup")
    stall.count(assembly.step)
    # The chief has restored a checkpoint; all processes start from its values.
    strategy.broadcast_from_chief(assembly.state_variables())
    assembly.learning_rate_scale.hold()
    if config.guard.rolls_back:
        # Barrier: the chief first saves a checkpoint for rollbacks.
        strategy.broadcast_from_chief([])
    first_step = int(assembly.step.numpy())
    console.say(f"{cluster.task} trains from step {first_step}")
    exit_code = ExitCode.DONE
    try:
        with PreemptionSignals() as signals:
            while not _advance(assembly, signals, stall):
                step = int(assembly.step.numpy())
                console.say(f"{cluster.task} goes back to step {step}")
    except DivergedError:
        exit_code = ExitCode.DIVERGED
    except StopRequested as stop:
        exit_code = stop.exit_code
        # Collective: the chief synchronizes the replica variables for its last
        # checkpoint.
        strategy.settle()
    strategy.broadcast_from_chief([])
    # The broadcast above is a barrier: the chief has written its last files.
    console.say(f"{cluster.task} ends at step {int(assembly.step.numpy())}")
    return exit_code


def _advance(
    assembly: TrainingParts, signals: PreemptionSignals, stall: Watchdog
) -> bool:
    """Trains and returns True at the last step, or False after a rollback.

    Raises:
      DivergedError: There is no checkpoint for a rollback.
    """
    strategy = assembly.strategy
    clock = Clock(stall.note)
    first_step = int(assembly.step.numpy())
    stall.begin(first_step)
    try:
        run_loop(
            assembly.loop_function,
            strategy.distribute(assembly.batches(first_step)),
            first_step=first_step,
            last_step=assembly.train_steps,
            call_length=StepsPerLoop(
                assembly.config.length.steps_per_loop, strategy.call_seconds
            ),
            callbacks=[Always(stall), *_hooks(assembly, clock), Always(signals)],
            clock=clock,
            # Not reported: the chief counts for all processes.
            tally=TrainCounters(),
            stop_requested=lambda: signals.requested,
        )
    except DivergedError:
        strategy.settle()
        if not assembly.config.guard.rolls_back:
            raise
        # The argument is ignored here: only the chief's step is broadcast.
        if agree_on_step(strategy, None) is None:
            raise
        strategy.broadcast_from_chief(assembly.state_variables())
        return False
    return True


def _hooks(assembly: TrainingParts, clock: Clock) -> list[When]:
    def nothing(report: StepEvent) -> None:
        del report

    def evaluate(report: StepEvent) -> None:
        del report
        with clock.measure("eval"):
            assembly.evaluation.run()

    return turns(
        assembly.config.report,
        assembly.eval_every_steps,
        record=nothing,
        write_metrics=nothing,
        write_histograms=nothing,
        evaluate=evaluate,
        save_checkpoint=lambda report: require_finite_weights(
            assembly.model, report.step
        ),
        profile=nothing,
        settle=assembly.strategy.settle,
        meet=lambda: assembly.strategy.broadcast_from_chief([]),
    )
