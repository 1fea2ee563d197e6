"""Training of a program's calls of `fit`, one after another, under a strategy."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.errors import ExitCode
from strategies.common.private_apis.fit_data import having_shuffles
from strategies.common.text import shown
from trainers.config.config import Config
from trainers.config.program import is_sent_call
from trainers.inputs.sources import Data
from trainers.keras_program.callback_state import models_written_after
from trainers.keras_program.chief_callbacks import CallbackError, order_error
from trainers.keras_program.config_of_fit import config_of_fit
from trainers.keras_program.data import (
    check_rollback,
    check_streams,
    data_of_fit,
    shuffles_of_fit,
    validates_on_nothing,
    validates_on_shuffled,
)
from trainers.keras_program.epochs import Epochs
from trainers.keras_program.fit_arguments import (
    FitArguments,
    continued_call,
    in_words,
)
from trainers.keras_program.left_out import without_backup
from trainers.keras_program.lent_model.attributes import trained_parts
from trainers.keras_program.lent_model.kept_traces import KeptTraces, kept_traces
from trainers.keras_program.lent_model.lent_model import LentModel
from trainers.keras_program.lent_model.traced_functions import TracedModels
from trainers.keras_program.program_variables import ProgramVariables
from trainers.loop.builder import assemble_parts
from trainers.loop.parts import Phase, TrainingParts
from trainers.loop.task_agreement import other_messages, refuse_together
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.train_state import FitCall, check_state, was_over

# Trains the parts of a run with the epochs of a `fit`, and returns the exit code.
Train = Callable[[TrainingParts, Epochs], ExitCode]


class CallsOfFit:
    """Calls of `fit` of a program on one task: the phases of its run.

    Attributes:
      count: Number of calls that have begun to train.
      model: Model that is being trained; None between two calls.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        strategy: Strategy,
        warn: Callable[[str], None],
        train: Train,
        variables: ProgramVariables,
        traced: TracedModels,
    ):
        """Trains nothing yet.

        Args:
          config: Configuration of the run.
          cluster: Cluster as seen from this task.
          strategy: Strategy of the run.
          warn: Function that prints a warning.
          train: Function that trains the parts of a call.
          variables: Variables of the program beside its models.
          traced: Models of the program that have traced a function.
        """
        self.count = 0
        self.model: keras.Model | None = None
        self._config = config
        self._cluster = cluster
        self._strategy = strategy
        self._warn = warn
        self._train = train
        self._variables = variables
        self._traced = traced
        self._flag = f"--script={config.model.script}"
        self._folder = RunDir(pathlib.Path(config.run.run_dir or ""))
        self._phase = Phase()
        # With those that train no epoch.
        self._num_calls = 0
        self._call: FitCall | None = None
        # Sent at the first call, which all tasks reach.
        self._earlier: Mapping[int, tuple[FitCall, bool]] | None = None
        # Of the last call, for the next one.
        self._kept: KeptTraces | None = None
        # Shuffled data that callbacks have read at the end of a call. Data sets are
        # kept, because ids of their shuffles are compared.
        self._read_at_end: list[tf.data.Dataset] = []

    def forget_traces(self) -> None:
        """Lets the next call be traced anew."""
        self._kept = None

    def as_before(self, model: keras.Model, now: FitArguments) -> FitArguments:
        """Returns the arguments with which a call continues that of before, if any.

        Raises:
          UsageError: The call would leave out epochs of the earlier one.
        """
        self._num_calls += 1
        # A notebook's call is the only one, of a model that is perhaps trained.
        is_only = is_sent_call(self._config.model.script)
        updates = 0 if is_only else int(getattr(model.optimizer, "iterations", 0))
        call = FitCall(self._num_calls, now.initial_epoch, now.epochs, updates)
        if self._earlier is None:
            self._earlier = self._read_earlier()
        was, is_over = self._earlier.get(self._phase.number, (None, False))
        trains = now.initial_epoch < now.epochs
        # A call that had no epoch before has none again, and no checkpoint.
        if was is not None and (trains or was.number == call.number):
            is_length_given = not self._config.given.isdisjoint(
                ("epochs", "train_steps")
            )
            continued = continued_call(was, is_over, call, is_length_given)
            if continued.initial_epoch != now.initial_epoch and self._cluster.is_chief:
                self._warn(
                    f"{in_words(call)} of the program continues the checkpoint of "
                    f"{in_words(was)}, and trains as {in_words(continued)}"
                )
            call = continued
        self._call = call
        return dataclasses.replace(
            now, initial_epoch=call.initial_epoch, epochs=call.epochs
        )

    def _read_earlier(self) -> dict[int, tuple[FitCall, bool]]:
        """Returns calls of earlier processes by phase, and whether each was over."""
        found, message = {}, b""
        # Other tasks may be unable to read the chief's folder.
        if self._cluster.is_chief:
            for phase in range(1, self._folder.num_phases() + 1):
                state = self._folder.state_of(phase)
                # An older version has not kept the call.
                with contextlib.suppress(DamagedError, TypeError):
                    check_state(state)
                    call = FitCall(**state.get("fit", {}))
                    found[phase] = dataclasses.asdict(call), was_over(state)
            message = json.dumps(found).encode()
        content = json.loads(b"".join(self._strategy.messages_of_all(message)))
        return {
            int(phase): (FitCall(**call), is_over)
            for phase, (call, is_over) in content.items()
        }

    def train(
        self, model: keras.Model, arguments: FitArguments, fit: Callable[..., Any]
    ) -> tuple[keras.callbacks.History, ExitCode]:
        """Trains a model in place of `fit`, and returns its history and the exit code.

        Args:
          model: Compiled model, whose variables have the trained values afterwards.
          arguments: Arguments of the call.
          fit: Keras's own `fit` of the model.

        Raises:
          UsageError: The call cannot be taken over.
          CallbackError: A callback has raised an error.
        """
        arguments = without_backup(arguments, self._warn)
        if self._cluster.is_chief:
            self._warn_of_later_models(arguments)
        data = self._data_of(arguments)
        config = config_of_fit(self._config, arguments, data)
        if config.strategy.traits.loops_together:
            self._require_same_model(model)
        lent, parts = self._lend(model, config, data)
        self.count += 1
        epochs = self._epochs_of(arguments, parts, fit)
        self.model = model
        try:
            exit_code = self._train(parts, epochs)
            if exit_code == ExitCode.DONE:
                # Also of a run that was complete before.
                epochs.finalize()
                epochs.callbacks.share_results()
                self._read_at_end += epochs.callbacks.read_at_end
                self._begin_next_phase(parts)
        except CallbackError:
            self._begin_next_phase(parts)
            lent.take_back()
            raise
        finally:
            self.model = None
        # Only now, because epochs read variables of the strategy until their end.
        lent.take_back()
        if exit_code == ExitCode.DONE:
            self._kept = kept_traces(lent, parts)
        return epochs.callbacks.history, exit_code

    def _require_same_model(self, model: keras.Model) -> None:
        """Refuses a model of which a task has other weights, or another optimizer."""
        own = trained_parts(model)
        others = other_messages(own, self._cluster, self._strategy)
        pairs = [pair for _, theirs, _ in others for pair in theirs.items()]
        other = sorted({name for name, x in pairs if own.get(name, x) != x})
        if other:
            refuse_together(
                f"workers have models of other {', '.join(other)}: callbacks run on "
                "the chief alone, so change the model between two calls of fit.",
                self._strategy,
            )

    def _data_of(self, arguments: FitArguments) -> Data:
        """Returns the data of a call, with warnings about its validation."""
        check_rollback(self._config.guard, arguments)
        seed = self._phase.order_seed(self._config.run.seed)
        data = data_of_fit(arguments, seed)
        check_streams(self._config.strategy, data)
        if validates_on_nothing(arguments, data):
            self._warn(
                "fit has validation data without examples: as in Keras, nothing is "
                "validated"
            )
        if validates_on_shuffled(arguments):
            self._warn(
                "training and validation data are parts of one data set that each "
                "reader shuffles anew, so that examples change sides and orders do not "
                "repeat: give its shuffle reshuffle_each_iteration=False"
            )
        return data

    def _epochs_of(
        self, arguments: FitArguments, parts: TrainingParts, fit: Callable[..., Any]
    ) -> Epochs:
        """Returns the epochs of a call, and warns of lengths that do not fit."""
        # In one process there is one value of each.
        loops_together = self._config.strategy.traits.loops_together
        read_in = self._variables.read_in if loops_together else None
        epochs = Epochs(arguments, parts, self._cluster.is_chief, fit, read_in)
        epochs.call = self._call
        if loops_together and len(self._cluster.computing) > 1:
            shuffles = epochs.callbacks.shuffles = shuffles_of_fit(arguments)
            if having_shuffles(self._read_at_end, shuffles):
                raise order_error("on_train_end of a callback of an earlier fit")
        remarks = [epochs.lengths.remark(epochs.num_steps)]
        for name in ("steps_per_epoch", "validation_steps"):
            remarks.append(epochs.executions.remark(name, getattr(arguments, name)))
        for remark in filter(None, remarks):
            self._warn(remark)
        return epochs

    def _warn_of_later_models(self, arguments: FitArguments) -> None:
        """Warns of files of a `fit` that was over which a later `fit` has replaced."""
        ended = self._folder.end_of(self._phase.number)
        if ended is None:
            return
        for path in models_written_after(arguments.callbacks, ended):
            self._warn(
                f"{shown(path)} is no longer what ModelCheckpoint wrote in this fit, "
                "which was over: a later one has written there, and the program loads "
                "that; give each fit another file and start anew"
            )

    def _lend(
        self, model: keras.Model, config: Config, data: Data
    ) -> tuple[LentModel, TrainingParts]:
        """Puts the strategy's variables below the program's objects, which it keeps."""
        kept, self._kept = self._kept, None
        if kept is not None and not kept.are_of(model, config, data):
            kept = None
        if self.count and config.strategy.traits.reuses_traces:
            # A task that traces anew would wait for collectives of other keys.
            word = b"" if kept is None else b"kept"
            is_kept = all(self._strategy.messages_of_all(word))
            kept = kept if is_kept else None
        if kept is not None:
            return kept.lent, kept.assemble(config, data, self._phase)
        lent = LentModel(model, self._flag, self._traced)
        spec = lent.spec(data, config)
        num_shards = config.strategy.num_shards(self._strategy.num_replicas)
        of_several = lent.remark if num_shards > 1 else None
        for remark in filter(None, (lent.remark_of_any, of_several)):
            self._warn(remark)
        parts = assemble_parts(config, self._strategy, data, spec, self._phase)
        of_evaluation = getattr(parts.objective, "evaluation_remark", None)
        if of_evaluation is not None and data.evaluation.num_examples:
            self._warn(of_evaluation)
        return lent, parts

    def _begin_next_phase(self, parts: TrainingParts) -> None:
        self._phase = Phase(number=self.count + 1, first_step=parts.applied_steps())
