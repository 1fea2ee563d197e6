"""Callbacks of a `fit`: they run on the chief, and all tasks get what they change."""

import contextlib
import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.base import Strategy
from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import having_shuffles, iterated
from strategies.common.private_apis.models import compiled_state
from strategies.common.private_apis.optimizers import schedule_of
from strategies.common.private_apis.variables import variables_as_numbers
from trainers.keras_program.callback_state import (
    CallbackState,
    kept_attributes,
    make_plain,
    observes_batches,
    observes_test_batches,
    restored_history,
    state_of_history,
)
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.lent_model.attributes import (
    Attributes,
    adopt,
    objects_of,
    plain_attributes,
)
from trainers.keras_program.streams.random_state import random_state, set_random_state
from trainers.keras_program.streams.stream import ProgramStream
from trainers.loop.parts import TrainingParts
from trainers.model.optimizers.several import parts_of
from trainers.run_dir.train_state import ASKED, BEGUN, CALLBACKS, STOPPED
from trainers.user_code import wrap_user_errors


class CallbackError(UsageError):
    """Error for what a callback has raised.

    Attributes:
      raised: Error that the callback has raised.
    """

    def __init__(self, message: str, raised: Exception):
        super().__init__(message)
        self.raised = raised


class ChiefCallbacks:
    """Callbacks of one `fit`, and its history.

    Attributes:
      history: Result of `fit`, which may be among the callbacks.
      observe_batches: True if a callback has something to do at every batch.
      observe_test_batches: The same at every batch of a validation.
      adds_to_file: True if a callback adds rows to a file of an earlier training.
      ask_to_stop: True if a callback has asked to stop the training.
      own_variables: Variables beside the model that its steps read.
      shuffles: Ids of the shuffles of the data, as of `shuffles_of`, that callbacks
        must not read, because tasks that call none would have another order.
      read_at_end: Data sets with such a shuffle that a callback has read after the last
        batch: no later `fit` may have them.
      is_over: True if the `fit` was completed by an earlier process.
    """

    def __init__(
        self,
        arguments: FitArguments,
        parts: TrainingParts,
        is_chief: bool,
        last_epoch: int,
    ):
        """Calls no callback yet; training ends in `last_epoch`."""
        given = arguments.callbacks
        found = [x for x in given if isinstance(x, keras.callbacks.History)]
        self.history = found[-1] if found else keras.callbacks.History()
        self.observe_batches = any(map(observes_batches, given))
        self.observe_test_batches = any(map(observes_test_batches, given))
        self.adds_to_file = any(
            isinstance(one, keras.callbacks.CSVLogger) and one.append for one in given
        )
        self.ask_to_stop = False
        self.own_variables: Sequence[tf.Variable] = ()
        self.shuffles: Collection[int] = ()
        self.read_at_end: list[tf.data.Dataset] = []
        self._parts = parts
        self._is_chief = is_chief
        own = given if is_chief else []
        self._all = keras.callbacks.CallbackList(
            # The history is last, because other callbacks add to the logs.
            own if found else [*own, self.history],
            model=parts.model,
            epochs=last_epoch,
            steps=arguments.steps_per_epoch or parts.order.steps_per_epoch,
            verbose=arguments.verbose,
        )
        parts.model.history = self.history
        # Other tasks call none of them, and get what they change.
        self._given, self._own = given, CallbackState(own)
        self._loops_together = parts.config.strategy.traits.loops_together
        self._read: list[Any] = []
        if given and self._loops_together:
            data = arguments.x, arguments.validation_data
            self._read = objects_of(parts.model, parts.optimizer, data)
        self._of_callbacks = Attributes(own if self._read else [], kept_attributes)
        self._of_model = Attributes(self._read if is_chief else [], plain_attributes)
        self._num_weights = len(parts.model.weights)
        # Listed once: to look for them at every batch would take 0.2 ms.
        self._optimizers = [one for one, _ in parts_of(parts.optimizer, [])]
        self._compiled = self._compiled_objects() if own else []
        self._restored: tuple[list[int], dict[str, list[Any]]] = ([], {})
        self._restored_state: Mapping[str, Any] | None = None
        self._restored_wish = False
        self.is_over = False

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs, for a checkpoint."""
        return {
            CALLBACKS: self._own.state(),
            "history": {
                **state_of_history(self.history),
                ASKED: float(self.ask_to_stop),
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues with the state of a checkpoint, which is empty for a new run."""
        history = dict(state.get("history", {}))
        for name in (STOPPED, BEGUN):
            history.pop(name, None)
        self._restored_wish = bool(history.pop(ASKED, False))
        self._restored = restored_history(history)
        self._restored_state = state.get(CALLBACKS)
        self._continue_history()

    def begin(self, epoch: int | None) -> None:
        """Calls callbacks at the start of training.

        Args:
          epoch: Epoch that an earlier process has begun; None if the next one is new.
        """
        if self._restored_state is None:
            self.call("on_train_begin")
        else:
            self._own.prepare()
            with self._kept_variables():
                self.call("on_train_begin")
                self._begin_again(epoch)
        self._continue()
        # The history has forgotten it, as at the start of a `fit`.
        self._continue_history()

    def _continue_history(self) -> None:
        # One that the program gives a new `fit` may have the epochs of earlier ones.
        if self._restored_state is not None:
            self.history.epoch, self.history.history = self._restored

    def _begin_again(self, epoch: int | None) -> None:
        """Calls callbacks at the start of an epoch that has begun before."""
        if epoch is not None:
            # They may set what no checkpoint has, such as a weight of a loss.
            self.call("on_epoch_begin", epoch)

    @contextlib.contextmanager
    def _kept_variables(self) -> Iterator[None]:
        """Puts values of a checkpoint back, after callbacks have begun anew.

        Callbacks may set a learning rate, or load weights.
        """
        variables = self._parts.state_variables() if self._given else []
        values = [variable.numpy() for variable in variables]
        yield
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def go_back(self, epoch: int | None) -> None:
        """Continues with the state of an earlier checkpoint, after `restore`.

        Args:
          epoch: Epoch that had begun when it was saved; None if none had.
        """
        self._own.reset_arguments()
        with self._kept_variables():
            self._begin_again(epoch)
        self._continue()
        self.share()

    def _continue(self) -> None:
        if self._restored_state is not None:
            self._own.restore(self._restored_state, self.is_over)
            self._parts.model.stop_training |= self._restored_wish

    def call(self, moment: str, *arguments: Any) -> None:
        """Calls a method of all callbacks.

        Raises:
          CallbackError: A callback has raised an error.
          UsageError: A callback has changed what the steps do not read again, or has
            put the data of other tasks out of step.
        """
        read: list[tf.data.Dataset] = []
        name = f"{moment} of a callback"
        try:
            with (
                wrap_user_errors(name),
                variables_as_numbers(),
                iterated(read) if self.shuffles else contextlib.nullcontext(),
            ):
                getattr(self._all, moment)(*arguments)
                if moment == "on_epoch_end":
                    make_plain(self.history)
        except UsageError as error:
            if not isinstance(error.__cause__, Exception):
                raise
            message = str(error)
            if self._loops_together:
                message += (
                    f" Under --strategy={self._parts.config.strategy.strategy} the "
                    "program cannot catch it, because other workers are still in this "
                    "fit: mirrored, tower and parameter_server let it."
                )
            raise CallbackError(message, error.__cause__) from error.__cause__
        shuffled = having_shuffles(read, self.shuffles)
        if moment == "on_train_end":
            self.read_at_end += shuffled
        elif shuffled:
            raise order_error(name)
        # Also at the end: the next `fit` of other workers would not follow.
        if self._compiled:
            _check_compiled(name, self._compiled, self._compiled_objects())

    def _compiled_objects(self) -> Sequence[Any]:
        """Returns what `compile` makes anew, and the schedules of the optimizers."""
        return [compiled_state(self._parts.model), *map(schedule_of, self._optimizers)]

    def share(self) -> None:
        """Makes what callbacks have changed equal on all tasks."""
        if not self._given:
            return
        if self._loops_together and len(self._parts.model.weights) != self._num_weights:
            raise UsageError(
                "a callback adds or removes weights of the model, on the chief alone: "
                "do this before fit, or between two calls of it."
            )
        strategy: Strategy = self._parts.strategy
        # With the variables, so that all tasks stop after the same step.
        stop = tf.Variable(float(self._parts.model.stop_training))
        strategy.broadcast_from_chief(
            [*self._parts.state_variables(), *self.own_variables, stop]
        )
        self.ask_to_stop = self._parts.model.stop_training = bool(stop.numpy())

    def ends_validation(self) -> bool:
        """Returns whether a callback has asked to end a validation, on all tasks."""
        stop = tf.Variable(float(self._parts.model.stop_evaluating))
        self._parts.strategy.broadcast_from_chief([stop])
        return bool(stop.numpy())

    def share_all(self) -> None:
        """Shares, and sends attributes and the state of random generators to all tasks.

        Callbacks draw on the chief alone, and every task reads the program's data,
        which may draw as well. Between two passes no task is reading a batch. Data
        without an end have no such moment.
        """
        self.share()
        if self._read:
            train = self._parts.data.train
            has_passes = isinstance(train, ProgramStream) and not train.is_one_pass
            self._send({"random": random_state()} if has_passes else {})

    def share_results(self) -> None:
        """Sends to all tasks what a program finds after a `fit`, beside its variables.

        These are the history, attributes, and the state of random generators, from
        which callbacks have drawn on the chief.
        """
        if not self._loops_together:
            return
        state = {"history": state_of_history(self.history), "random": random_state()}
        content = self._send({**state, CALLBACKS: self._of_callbacks.changed()})
        if self._is_chief:
            return
        restored = restored_history(content["history"])
        self.history.epoch, self.history.history = restored
        adopt(self._given, content[CALLBACKS])

    def _send(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the chief's content, and adopts its attributes and random states."""
        own = {**content, "model": self._of_model.changed()}
        sent = of_chief(self._parts.strategy, own)
        if not self._is_chief:
            adopt(self._read, sent["model"])
            if "random" in sent:
                set_random_state(sent["random"])
        return sent


def order_error(name: str) -> UsageError:
    """Returns the error for a callback that has read shuffled data of a `fit`."""
    return UsageError(
        f"{name} reads data of fit that are shuffled anew at each reading, on the "
        "chief alone, so that workers would train in different orders: give their "
        "shuffle reshuffle_each_iteration=False, or read the examples before fit."
    )


def _check_compiled(name: str, before: Sequence[Any], now: Sequence[Any]) -> None:
    """Refuses a change of objects that steps do not read again."""
    if now[0] is not before[0]:
        raise UsageError(
            f"{name} compiles the model: compile it after the fit, which "
            "self.model.stop_training = True ends, and call fit again, with "
            "initial_epoch."
        )
    if any(map(operator.is_not, before, now)):
        raise UsageError(
            f"{name} sets a schedule of the learning rate: compile the "
            "model with it, or set a number in each on_epoch_begin or "
            "on_train_batch_begin."
        )


def of_chief(strategy: Strategy, content: Any) -> Any:
    """Returns what JSON makes of the chief's content, on every task.

    All tasks call this function; the content of others than the chief is ignored.
    """
    text = json.dumps(content).encode()
    # Collectives sum no bytes, but integers of eight bytes.
    words = np.frombuffer(text + b" " * (-len(text) % 8), np.int64)
    # Other tasks learn how long the text is before they can receive it.
    length = tf.Variable(float(len(words)), dtype=tf.float64)
    strategy.broadcast_from_chief([length])
    shared = tf.Variable(tf.zeros([int(length.numpy())], tf.int64))
    if shared.shape == words.shape:
        shared.assign(words)
    strategy.broadcast_from_chief([shared])
    return json.loads(shared.numpy().tobytes())
