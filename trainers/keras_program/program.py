"""Execution of a Keras program, whose calls of `fit` the strategy of the run trains."""

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
from strategies.common.private_apis.fit_data import orders_kept
from strategies.common.private_apis.models import trained_as_traced
from strategies.common.private_apis.replaced import after_cleared_sessions
from strategies.common.private_apis.variables import variables_as_numbers
from trainers.config.config import Config
from trainers.config.program import is_sent_call
from trainers.keras_program.calls_of_fit import CallsOfFit, Train
from trainers.keras_program.chief_callbacks import CallbackError
from trainers.keras_program.fit_arguments import (
    FitArguments,
    arguments_of_call,
    check_call,
)
from trainers.keras_program.left_out import settings_left_out, variables_left_out
from trainers.keras_program.lent_model.traced_functions import TracedModels
from trainers.keras_program.program_variables import ProgramVariables
from trainers.keras_program.script import (
    failure_of_script,
    parser_that_ended,
    replaced_fit,
    run_script,
)
from trainers.loop.precision import set_precision
from trainers.run_dir.run_dir import RunDir
from trainers.user_code import errors_of_steps

# Arguments for which a program prints something and ends before it trains.
_ASKING_FOR_TEXT = frozenset(["-h", "--help", "--helpfull", "--helpshort", "--version"])

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
        self._environment = dict(os.environ)
        self._path = config.model.script or ""
        self._folder = RunDir(pathlib.Path(config.run.run_dir or ""))
        # After a `fit` that was completed, until the chief trains again or has ended.
        self._others_wait = False
        # Raised inside of `fit`, by this project and not by the program.
        self._error: BaseException | None = None
        # The same of a callback, whose own error the program may catch, as with Keras.
        self._callback_error: CallbackError | None = None
        self._ended: _ProgramEnded | None = None
        # As in a program that continues by itself and is over.
        self._had_no_epoch = False
        self._loops_together = config.strategy.traits.loops_together
        self._variables = ProgramVariables()
        self._traced = TracedModels()
        self._calls = CallsOfFit(
            config, cluster, strategy, self._warn, train, self._variables, self._traced
        )

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
            is_chief, count = self._cluster.is_chief, self._calls.count
            # Other tasks may be unable to read the chief's folder.
            if is_chief and count and not self._folder.has_later_checkpoint(count):
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
                self._traced.noted(),
                # Every strategy gets the same examples. Tasks that each read all data
                # take their rows by their numbers.
                orders_kept(),
                after_cleared_sessions(self._begin_session),
            ):
                run_script(self._path, arguments)
        except BaseException as error:
            if error is self._error or isinstance(error, KeyboardInterrupt):
                raise
            if self._callback_error and error is self._callback_error.raised:
                self._error = self._callback_error
                raise self._error from error
            is_help = not _ASKING_FOR_TEXT.isdisjoint(arguments)
            # A program may end with sys.exit() or sys.exit(0), as many do. With a text
            # that it was asked for, absl ends with 1.
            is_end = error is self._ended or (
                isinstance(error, SystemExit)
                and (not error.code or (is_help and parser_that_ended(error) == "absl"))
            )
            if not is_end:
                several = self._loops_together and len(self._cluster.computing) > 1
                raise failure_of_script(
                    self._path, arguments, error, several
                ) from error
        # The program has ended here, has caught it, or it was raised in a thread.
        if self._error is not None:
            raise self._error
        if self._ended is not None:
            return self._ended.exit_code
        if self._calls.count:
            self._require_all_calls()
        elif not is_help:
            self._accept_no_training()
        return ExitCode.DONE

    def _require_all_calls(self) -> None:
        """Refuses an end of the program before calls of `fit` that it made before."""
        count = self._calls.count
        if self._cluster.is_chief and self._folder.has_later_checkpoint(count):
            raise UsageError(
                f"--script={self._path} has ended after fit number {count}, and a "
                "later one has a checkpoint: make the same calls again, or give a "
                "program that skips what it has trained another --run_dir."
            )

    def _accept_no_training(self) -> None:
        """Warns that there is no run, if the program had no epoch left to train."""
        # A notebook waits for what its call of `fit` has trained.
        if not self._had_no_epoch or is_sent_call(self._path):
            raise UsageError(
                f"--script={self._path} has ended without a call of keras.Model.fit "
                "for an epoch or more: call it; loops of train_on_batch or "
                "GradientTape are not taken over."
            )
        self._warn(
            f"--script={self._path} has no epoch left to train (each fit has an "
            "initial_epoch that is not less than its epochs): there is no run"
        )

    def _begin_session(self) -> None:
        """Begins anew after the program has cleared Keras's session."""
        self._calls.forget_traces()
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
        if self._error is not None:
            # It ends the run, and this `fit` would continue that one's checkpoints.
            raise self._error
        if self._calls.model is not None and model is not self._calls.model:
            # A callback trains another model, on the chief alone.
            return fit(model, *args, **kwargs)
        try:
            self._check_call(model)
            arguments = arguments_of_call(fit, model, args, kwargs)
            if self._config.length.epochs is not None:
                arguments = dataclasses.replace(
                    arguments, epochs=self._config.length.epochs
                )
            arguments = self._calls.as_before(model, arguments)
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
                history, exit_code = self._calls.train(
                    model, arguments, functools.partial(fit, model)
                )
            is_over = exit_code != ExitCode.DONE
            if not (is_over or self._cluster.is_chief):
                # Only the chief runs the rest of the program, unless it trains again:
                # then this task reaches that call of `fit`, too.
                word, exit_code = self._tell(_OVER, ExitCode.BUG)
                if is_over := word == _OVER:
                    self._strategy.close()
        except CallbackError as error:
            self._leave_fit(error)
        except BaseException as error:
            self._fail(error)
            raise
        if is_over:
            self._end_program(exit_code)
        self._others_wait = True
        return history

    def _leave_fit(self, error: CallbackError) -> NoReturn:
        """Raises what a callback has raised, as `fit` does.

        Searches of hyperparameters stop a trial in this way.
        """
        if self._loops_together:
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
        if self._loops_together:
            self._end_program(ExitCode.USAGE)

    def _end_program(self, exit_code: ExitCode) -> NoReturn:
        self._ended = _ProgramEnded(exit_code)
        raise self._ended

    def _check_call(self, model: keras.Model) -> None:
        """Refuses a call of `fit` that cannot be taken over."""
        if model is self._calls.model:
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
        self._had_no_epoch = True
        given = {name: getattr(arguments, name) for name in FitArguments.__slots__}
        if not self._cluster.is_chief:
            given["callbacks"] = None
        return fit(model, **given)
