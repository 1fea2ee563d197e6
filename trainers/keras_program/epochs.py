"""Epochs of a program's `fit`: Keras's logs, history and callbacks at Keras's moments.

All tasks count the same logs. Callbacks run on the chief alone; what they change is
then sent to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective
from strategies.base import Strategy
from strategies.common.private_apis.variables import variables_as_numbers
from trainers.keras_program import callback_state
from trainers.keras_program.callback_state import (
    CallbackState,
    observes_batches,
    observes_test_batches,
)
from trainers.keras_program.chief_values import broadcast_json
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.streams.random_state import random_state, set_random_state
from trainers.keras_program.streams.stream import ProgramStream
from trainers.loop.evaluation import BatchObserver
from trainers.loop.parts import TrainingParts
from trainers.model.optimizers.loss_scale import REPORTED_SCALE
from trainers.reporting.metrics import MetricsWindow
from trainers.run_dir.train_state import CALLBACKS, STOPPED
from trainers.user_code import wrap_user_errors
from trainers.user_code.losses import CompiledObjective
from trainers.user_code.own_step.objective import reported_names


class Epochs:
    """The epochs of one `fit`.

    Attributes:
      arguments: Arguments of `fit`.
      fit: Keras's own `fit` of the model; None without a program.
      lengths: Numbers of steps of the epochs.
      window: Sums over the present epoch.
      is_stopped: True if a callback has stopped the training.
      history: What `fit` returns.
    """

    def __init__(
        self,
        arguments: FitArguments,
        parts: TrainingParts,
        is_chief: bool,
        fit: Callable[..., keras.callbacks.History] | None = None,
    ):
        """Calls no callback yet.

        Args:
          arguments: Arguments of `fit`.
          parts: Parts of the run.
          is_chief: True on the task that runs callbacks.
          fit: See the class.
        """
        self.arguments = arguments
        self.fit = fit
        self.lengths = arguments.lengths(parts.order.steps_per_epoch)
        self.window = MetricsWindow(parts.logs)
        self.is_stopped = False
        self.history: keras.callbacks.History = callback_state.PlainHistory()
        self._restored: tuple[list[int], dict[str, list[Any]]] = ([], {})
        self._parts = parts
        self._is_final = False
        self._is_chief = is_chief
        self._callbacks = keras.callbacks.CallbackList(
            # The history is last, because other callbacks add to the logs.
            [*(arguments.callbacks if is_chief else []), self.history],
            add_history=True,
            model=parts.model,
            epochs=self.last_epoch,
            steps=arguments.steps_per_epoch or parts.order.steps_per_epoch,
            verbose=arguments.verbose,
        )
        self._has_callbacks = bool(arguments.callbacks)
        self._own = CallbackState(arguments.callbacks if is_chief else [])
        self._state_of_callbacks: Mapping[str, Any] | None = None

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

    @property
    def observes_batches(self) -> bool:
        """True if a callback has something to do at every batch."""
        return any(map(observes_batches, self.arguments.callbacks))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues with the state of a checkpoint.

        Args:
          state: State as `state` returned it; empty for a new run.
        """
        self.window.restore(state.get("epoch_sums", {}))
        history = dict(state.get("history", {}))
        self.is_stopped = bool(history.pop(STOPPED, False))
        self._restored = callback_state.restored_history(history)
        self.history.epoch, self.history.history = self._restored
        self._state_of_callbacks = state.get(CALLBACKS)

    def begin(self) -> None:
        """Calls callbacks at the start of training, or of the present epoch."""
        # A former `fit` may have been stopped, or this one before it was resumed.
        self._parts.model.stop_training = self.is_stopped
        if self._state_of_callbacks is not None:
            self._own.prepare()
        self._call("on_train_begin")
        # After on_train_begin, in which callbacks begin anew.
        if self._state_of_callbacks is not None:
            self._own.restore(self._state_of_callbacks)
        # The history has forgotten it, as at the start of a `fit`.
        self.history.epoch, self.history.history = self._restored
        if not self._step():
            self._begin_epoch(self._epoch_of(0))
        if self.observes_batches and not self._is_over():
            self._call("on_train_batch_begin", self.lengths.batch_of(self._step()))
        # Also whether it is stopped, which only the chief has restored.
        self._send_changes()
        self._send_random_state()

    def end_batch(self) -> None:
        """Calls callbacks after a step, and before the next one of the epoch."""
        batch = self.lengths.batch_of(self._step() - 1)
        logs = self._reported(self.window.means(), training=True)
        self._call("on_train_batch_end", batch, logs)
        self._send_changes()
        is_end = self.lengths.batch_of(self._step()) == 0
        if not (is_end or self._is_over()):
            self._call("on_train_batch_begin", batch + 1)
            self._send_changes()

    @property
    def on_test_batch(self) -> BatchObserver | None:
        """Function for every batch of a validation; None if no callback looks."""
        observed = any(map(observes_test_batches, self.arguments.callbacks))
        return self._observe_test_batch if observed else None

    def _observe_test_batch(
        self, batch: int, results: Mapping[str, float] | None
    ) -> None:
        if results is None:
            if not batch:
                self._reset_metrics()
            self._call("on_test_batch_begin", batch)
        else:
            logs = self._reported(results, training=False)
            self._call("on_test_batch_end", batch, logs)

    def begin_validation(self) -> None:
        """Calls callbacks before the held-out examples are evaluated."""
        self._call("on_test_begin")
        self._send_changes()
        self._send_random_state()

    def end_validation(self, validated: Mapping[str, float]) -> None:
        """Calls callbacks after the held-out examples have been evaluated.

        Args:
          validated: Results of the validation.
        """
        self._call("on_test_end", self._reported(validated, training=False))
        self._send_changes()

    def end_training(self) -> dict[str, float]:
        """Returns the logs of the epoch, whose last batch has been trained on."""
        logs = self._reported(self.window.means(), training=True)
        # The next epoch begins with no examples, as Keras resets its metrics.
        self.window.reset()
        return logs

    def end(
        self, logs: dict[str, float], validated: Mapping[str, float] | None
    ) -> None:
        """Ends an epoch, and begins the next one if there is one.

        Args:
          logs: Result of `end_training`.
          validated: Results of the validation; None without.
        """
        epoch = self._epoch_of(self._step() - 1)
        validated = self._reported(validated or {}, training=False)
        logs |= {f"val_{name}": value for name, value in validated.items()}
        self._call("on_epoch_end", epoch, logs)
        self._send_changes()
        if self._is_over():
            return
        self._begin_epoch(epoch + 1)
        if self.observes_batches:
            self._call("on_train_batch_begin", 0)
        self._send_changes()
        self._send_random_state()

    def _begin_epoch(self, epoch: int) -> None:
        self._reset_metrics()
        self._call("on_epoch_begin", epoch)

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
        # The logs of the last epoch, which may not have been validated.
        epochs = self.history.epoch
        is_validated = bool(epochs) and self.arguments.is_validated(epochs[-1])
        logs = {
            name: values[-1]
            for name, values in self.history.history.items()
            if values and (is_validated or not name.startswith("val_"))
        }
        self._call("on_train_end", logs)
        self._send_changes()

    def share_history(self) -> None:
        """Sends the chief's history to all tasks; its callbacks have added to it."""
        content = callback_state.state_of_history(self.history)
        found = callback_state.restored_history(
            broadcast_json(self._parts.strategy, content)
        )
        if not self._is_chief:
            self.history.epoch, self.history.history = found

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs, for a checkpoint."""
        history = callback_state.state_of_history(self.history)
        return {
            "epoch_sums": self.window.sums(),
            CALLBACKS: self._own.state(),
            "history": {**history, STOPPED: float(self.is_stopped)},
        }

    def _is_over(self) -> bool:
        """Returns whether no batch follows."""
        is_last = self._parts.applied_steps() == self._parts.train_steps
        return is_last or self.is_stopped

    def _step(self) -> int:
        """Returns the number of updates that this `fit` has applied."""
        return self._parts.applied_steps() - self._parts.order.first_step

    def _call(self, moment: str, *arguments: Any) -> None:
        """Calls a method of all callbacks."""
        with wrap_user_errors(f"{moment} of a callback"), variables_as_numbers():
            getattr(self._callbacks, moment)(*arguments)

    def _epoch_of(self, step: int) -> int:
        return self.arguments.initial_epoch + self.lengths.epoch_of(step)

    def _send_changes(self) -> None:
        """Makes what callbacks have changed equal on all tasks."""
        if not self._has_callbacks:
            return
        strategy: Strategy = self._parts.strategy
        # With the variables, so that all tasks stop after the same step.
        stop = tf.Variable(float(self._parts.model.stop_training))
        strategy.broadcast_from_chief([*self._parts.state_variables(), stop])
        self.is_stopped = self._parts.model.stop_training = bool(stop.numpy())

    def _send_random_state(self) -> None:
        """Lets all tasks draw from where the chief's callbacks have drawn to.

        Each task reads the program's data, which may draw. Between two passes no batch
        is being read; data without an end are read ahead, by each task as far as it is.
        """
        train = self._parts.data.train
        has_passes = isinstance(train, ProgramStream) and not train.is_one_pass
        # In a single process a thread of the program may draw in the meantime.
        has_tasks = self._parts.config.strategy.traits.multi_process
        if self._has_callbacks and has_passes and has_tasks:
            set_random_state(broadcast_json(self._parts.strategy, random_state()))


def _metric_names(objective: Objective) -> set[str]:
    """Returns the names of the compiled metrics."""
    if not isinstance(objective, CompiledObjective):
        return set()
    return {one.metric.name for one in objective.metrics.resolved}
