"""Training of a Keras program: its calls of `fit` under the strategy of the run."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, NoReturn

import keras
import tensorflow as tf

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.private_apis.models import trained_as_traced
from strategies.common.private_apis.replaced import after_cleared_sessions
from strategies.common.private_apis.variables import variables_as_numbers
from strategies.common.text import shown
from trainers.config.config import Config
from trainers.inputs.sources import Data
from trainers.keras_program.callback_state import models_written_after
from trainers.keras_program.chief_callbacks import CallbackError
from trainers.keras_program.config_of_fit import config_of_fit
from trainers.keras_program.data import (
    check_streams,
    data_of_fit,
    validates_on_nothing,
    validates_on_shuffled,
)
from trainers.keras_program.epochs import Epochs
from trainers.keras_program.fit_arguments import (
    FitArguments,
    arguments_of_call,
    check_call,
)
from trainers.keras_program.left_out import (
    settings_left_out,
    variables_left_out,
    without_backup,
)
from trainers.keras_program.lent_model.kept_traces import KeptTraces, kept_traces
from trainers.keras_program.lent_model.lent_model import LentModel
from trainers.keras_program.program_variables import ProgramVariables
from trainers.keras_program.script import failure_of_script, replaced_fit, run_script
from trainers.loop.builder import assemble_parts
from trainers.loop.parts import Phase, TrainingParts
from trainers.loop.precision import set_precision
from trainers.run_dir.run_dir import RunDir
from trainers.user_code import errors_of_steps

# Trains the parts of a run with the epochs of a `fit`, and returns the exit code.
Train = Callable[[TrainingParts, Epochs], ExitCode]

# Arguments for which a program prints something and ends before it trains.
_ASKING_FOR_TEXT = frozenset(["-h", "--help", "--version"])

# What the chief tells tasks that wait after a `fit`.
_OVER, _TRAINS_AGAIN = 0, 1


class _ProgramEnded(BaseException):
    """End of a program on this task. A program's `except Exception` does not see it."""

    def __init__(self, exit_code: ExitCode):
        super().__init__(f"ended with {exit_code.name.lower()}")
        self.exit_code = exit_code


class Program:
    """The program of --script on one task."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        strategy: Strategy,
        console: Console,
        train: Train,
    ):
        """Runs nothing yet."""
        self._config = config
        self._cluster = cluster
        self._strategy = strategy
        # Programs that search call `fit` hundreds of times, with the same remarks.
        self._warn = functools.cache(console.warn)
        self._train = train
        self._environment = dict(os.environ)
        self._path = config.model.script or ""
        self._folder = RunDir(pathlib.Path(config.run.run_dir or ""))
        self._num_fits = 0
        # After a `fit` that was completed, until the chief trains again or has ended.
        self._others_wait = False
        self._phase = Phase()
        # Raised inside of `fit`, by this project and not by the program.
        self._error: BaseException | None = None
        # The same of a callback, whose own error the program may catch, as with Keras.
        self._callback_error: CallbackError | None = None
        self._ended: _ProgramEnded | None = None
        self._is_on_every_task = config.strategy.traits.loops_together
        # Model that is being trained.
        self._model: keras.Model | None = None
        self._variables = ProgramVariables()
        # Of the last `fit`, for the next one.
        self._kept: KeptTraces | None = None

    def run(self) -> ExitCode:
        """Runs the program, and returns the exit code.

        Raises:
          UsageError: The program failed, or did what cannot be taken over.
        """
        self._set_precision()
        # Every task makes the same model and data, unless the program chooses seeds.
        keras.utils.set_random_seed(self._config.run.seed)
        exit_code = ExitCode.USAGE
        try:
            exit_code = self._run()
            if self._callback_error is not None and exit_code == ExitCode.DONE:
                # That of the last `fit` is failed, if the program has caught its error.
                self._folder.add_to_result(status="completed")
        except UsageError:
            if self._cluster.is_chief and self._num_fits:
                # Of an earlier `fit`, which is not all that the program trains.
                # The program's own error comes after a whole training.
                after_fit = self._error is None
                self._folder.add_to_result(status="failed", failed_after_fit=after_fit)
            raise
        finally:
            self._end(exit_code)
        return exit_code

    def _run(self) -> ExitCode:
        arguments = self._config.model.script_arguments or ()
        is_help = False
        try:
            with (
                replaced_fit(self._fit, writes=self._cluster.is_chief),
                settings_left_out(self._warn),
                variables_as_numbers(),
                self._variables.noted(),
                after_cleared_sessions(self._begin_session),
            ):
                run_script(self._path, arguments)
        except BaseException as error:
            if error is self._error or isinstance(error, KeyboardInterrupt):
                raise
            if self._callback_error and error is self._callback_error.raised:
                self._error = self._callback_error
                raise self._error from error
            # A program may end with sys.exit() or sys.exit(0), as many do.
            is_end = error is self._ended or (
                isinstance(error, SystemExit) and not error.code
            )
            if not is_end:
                raise failure_of_script(self._path, arguments, error) from error
            is_help = not _ASKING_FOR_TEXT.isdisjoint(arguments)
        # The program has ended here, has caught it, or it was raised in a thread.
        if self._error is not None:
            raise self._error
        if self._ended is not None:
            return self._ended.exit_code
        if not (self._num_fits or is_help):
            raise UsageError(
                f"--script={self._path} has ended without a call of keras.Model.fit "
                "for an epoch or more: call it; loops of train_on_batch or "
                "GradientTape are not taken over."
            )
        return ExitCode.DONE

    def _begin_session(self) -> None:
        """Begins anew after the program has cleared Keras's session."""
        self._kept = None
        self._set_precision()

    def _set_precision(self) -> None:
        """Sets the types of --dtype, which a program may clear with Keras's session."""
        if "dtype" in self._config.given:
            set_precision(self._config.model)

    def _end(self, exit_code: ExitCode) -> None:
        """Tells tasks that wait after a `fit` that the program is over."""
        if self._cluster.is_chief and self._others_wait:
            self._strategy.close()
            self._tell(_OVER, exit_code)

    def _tell(self, what: int, exit_code: ExitCode) -> tuple[int, ExitCode]:
        """Sends a word from the chief to all tasks, and returns it on each."""
        # Floats, which every collective implementation sums.
        word = tf.Variable([float(what), float(exit_code)])
        self._strategy.broadcast_from_chief([word])
        said, code = word.numpy()
        if said == _OVER:
            self._strategy.wait_until_all_are_done()
        return int(said), ExitCode(int(code))

    def _fit(
        self, fit: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any
    ) -> keras.callbacks.History:
        """Trains in place of `keras.Model.fit`."""
        if self._ended is not None:
            # The program has caught it, by `except:`.
            raise self._ended
        if self._model is not None and model is not self._model:
            # A callback trains another model, on the chief alone.
            return fit(model, *args, **kwargs)
        try:
            self._check_call(model)
            arguments = arguments_of_call(fit, model, args, kwargs)
            if self._config.length.epochs is not None:
                arguments = dataclasses.replace(
                    arguments, epochs=self._config.length.epochs
                )
            if arguments.epochs <= arguments.initial_epoch:
                return self._fit_nothing(fit, model, arguments)
            if self._others_wait and self._cluster.is_chief:
                self._tell(_TRAINS_AGAIN, ExitCode.DONE)
            self._others_wait = False
            with (
                errors_of_steps(),
                trained_as_traced(model),
                self._variables.not_noted(),
            ):
                history, exit_code = self._train_model(
                    model, arguments, functools.partial(fit, model)
                )
        except CallbackError as error:
            self._leave_fit(error)
        except BaseException as error:
            self._fail(error)
            raise
        if exit_code != ExitCode.DONE:
            self._end_program(exit_code)
        self._others_wait = True
        if not self._cluster.is_chief:
            # Only the chief runs the rest of the program, unless it trains again: then
            # this task reaches that call of `fit`, too.
            word, exit_code = self._tell(_OVER, ExitCode.BUG)
            if word == _OVER:
                self._strategy.close()
                self._end_program(exit_code)
        return history

    def _leave_fit(self, error: CallbackError) -> NoReturn:
        """Raises what a callback has raised, as `fit` does: searches stop trials so."""
        if self._is_on_every_task:
            self._fail(error)
        self._strategy.pause()
        self._others_wait = True
        self._callback_error = error
        raise error.raised

    def _fail(self, error: BaseException) -> None:
        """Keeps an error of `fit`, and ends the program if other tasks run it, too.

        They are still in this `fit`: the program cannot catch the error and go on.
        """
        self._error = error
        if self._is_on_every_task:
            self._end_program(ExitCode.USAGE)

    def _end_program(self, exit_code: ExitCode) -> NoReturn:
        self._ended = _ProgramEnded(exit_code)
        raise self._ended

    def _check_call(self, model: keras.Model) -> None:
        """Refuses a call of `fit` that cannot be taken over."""
        if model is self._model:
            raise UsageError(
                f"--script={self._path} calls fit of the model that is being trained, "
                "in one of its callbacks: train a copy (keras.models.clone_model)."
            )
        check_call(model, self._path)
        for words in variables_left_out(self._environment):
            self._warn(words)
        if model.run_eagerly and not self._config.model.keras_fit:
            self._warn(
                f"--script={self._path} compiles its model with run_eagerly=True: here "
                "steps are graphs, and Python code in them runs when they are traced"
            )

    def _fit_nothing(
        self, fit: Callable[..., Any], model: keras.Model, arguments: FitArguments
    ) -> keras.callbacks.History:
        """Calls Keras's `fit` for no epoch: it calls callbacks, and trains nothing."""
        # The program itself may do so, but not the flag.
        if self._config.length.epochs is not None:
            raise UsageError(
                f"--epochs={arguments.epochs} leaves nothing to train after "
                f"fit(initial_epoch={arguments.initial_epoch}): give a larger number."
            )
        given = {name: getattr(arguments, name) for name in FitArguments.__slots__}
        if not self._cluster.is_chief:
            given["callbacks"] = None
        return fit(model, **given)

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

    def _train_model(
        self, model: keras.Model, arguments: FitArguments, fit: Callable[..., Any]
    ) -> tuple[keras.callbacks.History, ExitCode]:
        arguments = without_backup(arguments, self._warn)
        if self._cluster.is_chief:
            self._warn_of_later_models(arguments)
        data = data_of_fit(arguments, self._config.run.seed)
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
        config = config_of_fit(self._config, arguments, data)
        lent, parts = self._lend(model, config, data)
        self._num_fits += 1
        # In one process there is one value of each.
        read_in = self._variables.read_in if self._is_on_every_task else None
        epochs = Epochs(arguments, parts, self._cluster.is_chief, fit, read_in)
        for remark in (
            epochs.lengths.remark(epochs.num_steps),
            *(
                epochs.executions.remark(name, getattr(arguments, name))
                for name in ("steps_per_epoch", "validation_steps")
            ),
        ):
            if remark is not None:
                self._warn(remark)
        self._model = model
        try:
            exit_code = self._train(parts, epochs)
            if exit_code == ExitCode.DONE:
                # Also of a run that was complete before.
                epochs.finalize()
                epochs.callbacks.share_history()
                self._begin_next_phase(parts)
        except CallbackError:
            self._begin_next_phase(parts)
            lent.take_back()
            raise
        finally:
            self._model = None
        # Only now, because epochs read variables of the strategy until their end.
        lent.take_back()
        if exit_code == ExitCode.DONE:
            self._kept = kept_traces(lent, parts)
        return epochs.callbacks.history, exit_code

    def _lend(
        self, model: keras.Model, config: Config, data: Data
    ) -> tuple[LentModel, TrainingParts]:
        """Puts the strategy's variables below the program's objects, which it keeps."""
        kept, self._kept = self._kept, None
        if kept is not None and not kept.are_of(model, config, data):
            kept = None
        if self._num_fits and config.strategy.traits.reuses_traces:
            # A task that traces anew would wait for collectives of other keys.
            word = b"" if kept is None else b"kept"
            is_kept = all(self._strategy.messages_of_all(word))
            kept = kept if is_kept else None
        if kept is not None:
            return kept.lent, kept.assemble(config, data, self._phase)
        lent = LentModel(model, f"--script={self._path}")
        spec = lent.spec(data, config)
        if lent.remark is not None and self._strategy.num_replicas > 1:
            self._warn(lent.remark)
        parts = assemble_parts(config, self._strategy, data, spec, self._phase)
        return lent, parts

    def _begin_next_phase(self, parts: TrainingParts) -> None:
        step = parts.applied_steps()
        self._phase = Phase(
            number=self._num_fits + 1,
            first_step=step,
            first_example=parts.order.first_example_of_step(step),
        )
