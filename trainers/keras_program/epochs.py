"""Epochs of a program's `fit`: Keras's logs and callbacks at Keras's moments."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective
from strategies.common.types import GlobalBatches
from trainers.keras_program.chief_callbacks import ChiefCallbacks
from trainers.keras_program.epoch_lengths import Executions
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.streams.random_state import random_state, set_random_state
from trainers.keras_program.streams.stream import ProgramStream
from trainers.loop.evaluation import BatchObserver
from trainers.loop.parts import TrainingParts
from trainers.model.optimizers.loss_scale import REPORTED_SCALE
from trainers.reporting.metrics import MetricsWindow
from trainers.run_dir.encoding import decoded, encoded
from trainers.run_dir.train_state import (
    BEGUN,
    LAST_LOGS,
    RANDOM,
    STOPPED,
    FitCall,
    is_stopped,
)
from trainers.user_code.losses import CompiledObjective
from trainers.user_code.own_step.objective import reported_names

# Function from a graph to some of the variables that it reads.
VariablesIn = Callable[[tf.Graph], Sequence[tf.Variable]]


class Epochs:
    """The epochs of one `fit`. All tasks count the same logs.

    Attributes:
      arguments: Arguments of `fit`.
      fit: Keras's own `fit` of the model; None without a program.
      lengths: Numbers of steps of the epochs.
      executions: Executions, of one step each without a program.
      window: Sums over the present epoch.
      callbacks: Callbacks, with the history that `fit` returns.
      is_stopped: True if a callback has stopped the training. `fit` looks for that at
        the end of a batch and of an epoch.
      call: Call of the program; None without a program.
    """

    def __init__(
        self,
        arguments: FitArguments,
        parts: TrainingParts,
        is_chief: bool,
        fit: Callable[..., keras.callbacks.History] | None = None,
        variables_in: VariablesIn | None = None,
    ):
        """Calls no callback yet.

        Args:
          arguments: Arguments of `fit`.
          parts: Parts of its training.
          is_chief: True on the task that runs callbacks.
          fit: Keras's own `fit` of the model; None without a program.
          variables_in: Function from the graph of the steps to the variables of the
            program's own that it reads; None if no other task needs their values.
        """
        self.arguments = arguments
        self.fit = fit
        self.lengths = arguments.lengths(parts.order.steps_per_epoch)
        size = 1 if fit is None else parts.model.steps_per_execution
        self.executions = Executions(self.lengths, size)
        self.window = MetricsWindow(parts.logs)
        self.is_stopped = False
        self.call: FitCall | None = None
        self._parts = parts
        self._variables_in = variables_in
        self._is_final = False
        # True if callbacks have begun the next batch, perhaps in another process.
        self._is_begun = False
        self._restored_random: Mapping[str, Any] = {}
        # Logs of the last epoch, without what callbacks have added to them.
        self._last_logs: dict[str, Any] = {}
        self.callbacks = ChiefCallbacks(arguments, parts, is_chief, self.last_epoch)

    @property
    def last_epoch(self) -> int:
        """Number of the epoch in which training ends, as `fit` counts `epochs`.

        It is not the program's own if --train_steps is given.
        """
        return self._epoch_of(self.num_steps - 1) + 1

    @property
    def num_steps(self) -> int:
        """Number of steps of all epochs."""
        return self._parts.train_steps - self.first_step

    @property
    def first_step(self) -> int:
        """Step of the first batch of the first epoch."""
        return self._parts.order.first_step

    def restore(self, state: Mapping[str, Any], was_stopped: bool) -> None:
        """Continues with the state of a checkpoint.

        Args:
          state: State of the checkpoint; empty for a new run, and on tasks that restore
            none.
          was_stopped: True if a callback had stopped the training.
        """
        self.window.restore(state.get("epoch_sums", {}))
        self.is_stopped = was_stopped
        self.callbacks.restore(state)
        self._is_begun = bool(state.get("history", {}).get(BEGUN, False))
        self._restored_random = state.get(RANDOM, {})
        logs = state.get(LAST_LOGS, {})
        self._last_logs = {name: decoded(value) for name, (value,) in logs.items()}

    def read_again(self, is_over: bool, note_batch: Callable[[], None]) -> None:
        """Reads batches that earlier processes have used and this training skips.

        A generator of the program then continues at the right batch, in this `fit` and
        in the next one.

        Args:
          is_over: True if an earlier process has completed this `fit`.
          note_batch: Function that is called after each batch.
        """
        self.callbacks.is_over = is_over
        parts, train = self._parts, self._parts.data.train
        read: list[GlobalBatches] = []
        # A run may have been killed after its last checkpoint, and before its end.
        last_step = parts.applied_steps()
        has_no_steps = is_over or self.is_stopped or last_step == parts.train_steps
        if isinstance(parts.data.evaluation, ProgramStream):
            ended = self._epoch_of(self._step()) - self.arguments.initial_epoch
            # Where training ends within an epoch, the epoch ends as well.
            ended += has_no_steps and self.lengths.batch_of(self._step()) > 0
            validated = list(filter(self._is_epoch_validated, range(ended)))
            if validated and (stream := self._stream_of_epochs()):
                # Training reads its earlier epochs again, and these in between.
                stream.read_again(parts.evaluation.batches.dataset(0, 1), validated)
            else:
                read = [parts.evaluation.batches] * len(validated)
        if has_no_steps and isinstance(train, ProgramStream):
            read.append(train.batches(parts.order, self.first_step, last_step))
        for batches in read:
            for _ in batches.dataset(0, 1):
                note_batch()

    def _is_epoch_validated(self, index: int) -> bool:
        return self.arguments.is_validated(self.arguments.initial_epoch + index)

    def _stream_of_epochs(self) -> ProgramStream | None:
        """Returns the training data if each epoch reads a pass over a stream."""
        train = self._parts.data.train
        if not isinstance(train, ProgramStream) or train.is_one_pass:
            return None
        return train if self.lengths.of_all == train.num_batches else None

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Continues with the state of an earlier checkpoint, after a divergence."""
        self.restore(state, is_stopped(state))
        self._parts.model.stop_training = self.is_stopped
        self.callbacks.go_back(self._begun_epoch())

    def begin(self) -> None:
        """Calls callbacks at the start of training, or of the present epoch."""
        # A former `fit` may have been stopped, or this one before it was resumed.
        self._parts.model.stop_training = self.is_stopped
        # Only the chief has restored it.
        self._look_for_stop()
        self.callbacks.begin(self._begun_epoch())
        if self._is_over():
            # The program continues with the numbers that this `fit` had left.
            if self._restored_random:
                set_random_state(self._restored_random)
        elif not self._is_begun:
            self._begin_epoch(self._epoch_of(self._step()))
            self._begin_batch()
        self.callbacks.share_all()

    def _begun_epoch(self) -> int | None:
        """Returns the epoch that callbacks have begun; None if the next one is new."""
        if self._is_begun and not self._is_over():
            return self._epoch_of(self._step())
        return None

    def follow(self, graph: tf.Graph) -> None:
        """Shares variables of the program's own that the graph of the steps reads.

        Called by all tasks after `begin`, when the steps have been traced.
        """
        if self._variables_in is None:
            return
        self.callbacks.own_variables = self._variables_in(graph)
        if self.callbacks.own_variables:
            self.callbacks.share()

    def is_due_at_batch(self) -> bool:
        """Returns whether `end_batch` is to be called after the next step."""
        return self.callbacks.observe_batches or self.callbacks.ask_to_stop

    def next_end_of_batch(self, step: int) -> int:
        """Returns the first step after one at which `end_batch` is called."""
        return self.first_step + self.executions.end(step - self.first_step)

    def next_end_of_epoch(self, step: int) -> int:
        """Returns the first step after one at which an epoch ends."""
        return self.first_step + self.lengths.end(step - self.first_step)

    def end_batch(self) -> None:
        """Calls callbacks after an execution, and before the next one of the epoch."""
        if self.callbacks.observe_batches:
            batch = self.executions.last_batch(self._step() - 1)
            logs = self._reported(self.window.means(), training=True)
            self.callbacks.call("on_train_batch_end", batch, logs)
        self._look_for_stop()
        is_end = self.lengths.batch_of(self._step()) == 0
        if not (is_end or self._is_over()):
            self._begin_batch()
            self.callbacks.share()

    @property
    def on_test_batch(self) -> BatchObserver | None:
        """Function for every batch of a validation; None if no callback looks."""
        observed = self.callbacks.observe_test_batches
        return self._observe_test_batch if observed else None

    def _observe_test_batch(
        self, batch: int, results: Mapping[str, float] | None
    ) -> None:
        if results is None:
            if not batch:
                self._reset_metrics()
            self.callbacks.call("on_test_batch_begin", batch)
        else:
            logs = self._reported(results, training=False)
            self.callbacks.call("on_test_batch_end", batch, logs)

    def begin_validation(self) -> None:
        """Calls callbacks before the held-out examples are evaluated."""
        self.callbacks.call("on_test_begin")
        self.callbacks.share_all()

    def end_validation(self, validated: Mapping[str, float]) -> None:
        """Calls callbacks after the held-out examples have been evaluated."""
        logs = self._reported(validated, training=False)
        self.callbacks.call("on_test_end", logs)
        self.callbacks.share()

    def end_training(self) -> dict[str, float]:
        """Returns the logs of the epoch, whose last batch has been trained on."""
        logs = self._reported(self.window.means(), training=True)
        # The next epoch begins with no examples, as Keras resets its metrics.
        self.window.reset()
        return logs

    def end(
        self, logs: dict[str, float], validated: Mapping[str, float] | None
    ) -> None:
        """Ends an epoch with the logs of `end_training`, and begins the next one."""
        epoch = self._epoch_of(self._step() - 1)
        validated = self._reported(validated or {}, training=False)
        logs |= {f"val_{name}": value for name, value in validated.items()}
        self._last_logs = logs
        self.callbacks.call("on_epoch_end", epoch, logs)
        self._look_for_stop()
        if self._is_over():
            return
        self._begin_epoch(epoch + 1)
        self._begin_batch()
        self.callbacks.share_all()

    def _begin_epoch(self, epoch: int) -> None:
        self._reset_metrics()
        self.callbacks.call("on_epoch_begin", epoch)

    def _begin_batch(self) -> None:
        if self.callbacks.observe_batches:
            batch = self.executions.first_batch(self._step())
            self.callbacks.call("on_train_batch_begin", batch)

    def _look_for_stop(self) -> None:
        self.callbacks.share()
        self.is_stopped = self.callbacks.ask_to_stop

    def _reset_metrics(self) -> None:
        """Empties the metrics of a program's model, in which `fit` keeps the logs."""
        if self.fit is not None:
            self._parts.model.reset_metrics()

    def _reported(
        self, results: Mapping[str, float], training: bool
    ) -> dict[str, float]:
        """Returns what `fit` reports: a step of the model's own may have no loss."""
        objective = self._parts.objective
        names = reported_names(objective, training)
        if names is None:
            # The scale of the loss is no metric, unless the program has one so named.
            names = results.keys() - ({REPORTED_SCALE} - _metric_names(objective))
        return {name: value for name, value in results.items() if name in names}

    def is_validated(self) -> bool:
        """Returns whether the epoch that ends now is validated."""
        if not self._parts.evaluation.num_examples:
            return False
        return self.arguments.is_validated(self._epoch_of(self._step() - 1))

    def finalize(self) -> None:
        """Replaces the weights by their moving average, if the optimizer keeps one.

        Checkpoints have the weights themselves, from which a resumed run trains.
        """
        weights = self._parts.model.trainable_variables
        if self._parts.has_compiled_optimizer and not self._is_final:
            self._parts.optimizer.finalize_variable_values(weights)
        self._is_final = True

    def finish(self) -> None:
        """Calls callbacks at the end of training."""
        self.finalize()
        self.callbacks.call("on_train_end", self._last_logs)
        self.callbacks.share()

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs, for a checkpoint."""
        state = self.callbacks.state()
        state["history"][STOPPED] = float(self.is_stopped)
        state["history"][BEGUN] = float(not self._is_over())
        random = {RANDOM: random_state()} if self._is_over() else {}
        fit = {} if self.call is None else {"fit": dataclasses.asdict(self.call)}
        logs = {name: encoded(value) for name, value in self._last_logs.items()}
        sums = {"epoch_sums": self.window.sums(), LAST_LOGS: logs}
        return {**sums, **random, **fit, **state}

    def _is_over(self) -> bool:
        """Returns whether no batch follows."""
        is_last = self._parts.applied_steps() == self._parts.train_steps
        return is_last or self.is_stopped

    def _step(self) -> int:
        """Returns the number of updates that this `fit` has applied."""
        return self._parts.applied_steps() - self.first_step

    def _epoch_of(self, step: int) -> int:
        return self.arguments.initial_epoch + self.lengths.epoch_of(step)


def _metric_names(objective: Objective) -> set[str]:
    """Returns the names of the compiled metrics."""
    if not isinstance(objective, CompiledObjective):
        return set()
    return {one.metric.name for one in objective.metrics.resolved}
