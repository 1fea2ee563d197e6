"""The evaluator of a cluster: evaluates checkpoints while the others train.

It has a device of its own and is no part of TensorFlow's cluster, so nobody waits for
it. It reads the folder of the run, and writes nothing but tb/evaluator.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import time

from strategies.cluster.rendezvous import Needed, wait_for_tasks
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.write_errors import Spell
from strategies.config import StrategyConfig
from trainers.config.config import Config
from trainers.fault_tolerance.preemption import StopSignals
from trainers.loop.builder import Assembly, assemble, create_strategy
from trainers.loop.evaluation import Evaluated
from trainers.model.confusion_matrix import CONFUSION_MATRIX, draw_confusion
from trainers.reporting.reporter import in_words
from trainers.reporting.tensorboard import EVALUATOR, Summaries
from trainers.reporting.tracking.event_copies import EventCopies, check_target
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.checkpoints import Checkpoints
from trainers.run_dir.run_dir import RunFolder

_POLL_SECONDS = 0.5
_SECONDS_UNTIL_LOST = 5.0


def evaluator(config: Config, cluster: Cluster, console: Console) -> int:
    """Evaluates every checkpoint until the run ends, and returns its exit code.

    Raises:
      UsageError: the configuration cannot be run.
      ClusterIncompleteError: the chief did not start in time.
      PeerLostError: the chief is gone and has not said how the run ended.
    """
    folder = RunFolder(pathlib.Path(config.run.run_dir or ""))
    chief = _Chief(cluster, folder, config.strategy.peer_timeout_seconds)
    alone = dataclasses.replace(config, strategy=StrategyConfig())
    copies = _copies(config, folder, console)
    evaluator = _Evaluator(
        assemble(alone, create_strategy(alone, Cluster())), folder, console
    )
    copies.start()
    with StopSignals() as signals:
        wait_for_tasks(
            chief.addresses,
            config.strategy.startup_timeout_seconds,
            lambda: signals.requested or chief.has_ended(),
        )
        while not signals.requested:
            exit_code = chief.exit_code()
            # Also those that were written just before the end.
            evaluator.evaluate_new(signals)
            if exit_code is not None:
                copies.stop()
                return exit_code
            time.sleep(_POLL_SECONDS)
        return signals.exit_code


def _copies(config: Config, folder: RunFolder, console: Console) -> EventCopies:
    """Of the evaluator's own event files; the chief copies all others."""
    target = config.tracking.tensorboard_copy
    check_target(target)
    return EventCopies(
        folder.tensorboard / EVALUATOR,
        None if target is None else f"{target}/{EVALUATOR}",
        console,
    )


class _Chief:
    """Whether the run goes on, as seen from outside."""

    def __init__(
        self, cluster: Cluster, folder: RunFolder, peer_timeout_seconds: float
    ):
        self.addresses = {
            task: address
            for task, address in cluster.members().items()
            if address == cluster.computing[0]
        }
        ((task, address),) = self.addresses.items()
        self._needed = Needed(task, address, _SECONDS_UNTIL_LOST, peer_timeout_seconds)
        self._ending = pathlib.Path(folder.ending_path().format(task=cluster.task))
        # One of an earlier part of the run is not an end of this one.
        self._before = self._written()

    def has_ended(self) -> bool:
        """Whether it has said so since this object was made."""
        return self._written() not in (None, self._before)

    def exit_code(self) -> int | None:
        """The run's, or None while it goes on."""
        if self.has_ended():
            return int(self._ending.read_text(encoding="utf-8"))
        self._needed.require()
        return None

    def _written(self) -> tuple[int, int] | None:
        try:
            status = self._ending.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino


class _Evaluator:
    """Evaluates each checkpoint once."""

    def __init__(self, assembly: Assembly, folder: RunFolder, console: Console):
        self._assembly = assembly
        self._console = console
        self._folder = folder
        self._checkpoints = Checkpoints(
            folder.checkpoints,
            model=assembly.model,
            optimizer=assembly.optimizer,
            step=assembly.step,
            keep=assembly.config.report.keep_checkpoints,
        )
        self._done: set[int] = set()
        self._spell = Spell(console)
        self._summaries: Summaries | None = None

    def evaluate_new(self, signals: StopSignals) -> None:
        """Evaluates those not seen before, in the order of their steps."""
        for step in self._checkpoints.steps():
            if step in self._done or signals.requested:
                continue
            self._done.add(step)
            try:
                self._checkpoints.restore(step)
            except DamagedError as error:
                self._console.warn(f"checkpoint of step {step} is passed over: {error}")
                continue
            self._report(step, self._assembly.evaluation.run())

    def _report(self, step: int, evaluated: Evaluated) -> None:
        if self._summaries is None:
            self._summaries = Summaries(
                self._folder.tensorboard, self._spell, (EVALUATOR,)
            )
        means, confusion = evaluated
        finite = {name: v for name, v in means.items() if math.isfinite(v)}
        self._summaries.scalars(EVALUATOR, finite, step)
        if confusion is not None:
            picture = draw_confusion(confusion, self._assembly.data.class_names)
            self._summaries.image(EVALUATOR, CONFUSION_MATRIX, picture, step)
        if self._summaries.flush():
            self._spell.end("summaries")
        self._console.say(f"eval  | step {step:>7} | {in_words(means)}")
