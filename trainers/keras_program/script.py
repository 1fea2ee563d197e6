"""Execution of a program's file, with another `fit` in place of Keras's."""

import contextlib
import functools
import inspect
import os
import pathlib
import runpy
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import keras

# TensorFlow's attribute is another module before the first such import. Keras does one
# when it exports a model.
import tensorflow.saved_model as saved_model

from models.name_collisions import package_of
from strategies.common.errors import UsageError
from strategies.common.private_apis.replaced import (
    files_without_package,
    replaced,
    replaced_fit_of_keras_2,
)
from strategies.common.text import shown
from trainers.user_code import failure_of, subject_of_program


@contextlib.contextmanager
def replaced_fit(fit: Callable[..., Any], writes: bool) -> Iterator[None]:
    """Makes every call of `keras.Model.fit` in the block a call of a function.

    Args:
      fit: Function of Keras's own `fit`, the model and the arguments of the call.
      writes: False if another task writes the program's files. Then this task writes
        and reads models elsewhere: two tasks that write one file would destroy it, and
        a program may read the file before the other task has written it.
    """

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return fit(original, *args, **kwargs)

        return call

    with contextlib.ExitStack() as block:
        block.enter_context(replaced(keras.Model, ["fit"], replacement))
        block.enter_context(replaced_fit_of_keras_2(lambda *_: _refuse_keras_2))
        if not writes:
            folder = block.enter_context(tempfile.TemporaryDirectory())
            elsewhere = functools.partial(_elsewhere, folder, {})
            for place, names in (*_WRITERS, *_READERS):
                block.enter_context(replaced(place, names, elsewhere))
        yield


def _refuse_keras_2(model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Stands for `fit` of Keras 2, which would train without the strategy."""
    module = next(c.__module__ for c in type(model).__mro__ if c.__name__ == "Model")
    package = module.partition(".src.")[0].removesuffix(".engine.training")
    remedy = "import keras, which is Keras 3, in its place"
    if os.environ.get("TF_USE_LEGACY_KERAS", "0") not in ("", "0"):
        remedy += " and start it without TF_USE_LEGACY_KERAS"
    raise UsageError(f"the program calls fit of Keras 2 ({package}): {remedy}.")


_WRITERS = (
    (keras.Model, ("save", "save_weights", "export")),
    # The same by functions.
    (keras.saving, ("save_model", "save_weights")),
    (keras.models, ("save_model",)),
    # `export` and `keras.export.ExportArchive` call it as well.
    (saved_model, ("save",)),
)
_READERS = (
    (keras.Model, ("load_weights",)),
    (keras.saving, ("load_model", "load_weights")),
    (keras.models, ("load_model",)),
    # So does `keras.layers.TFSMLayer`.
    (saved_model, ("load",)),
)


def _elsewhere(
    folder: str, copies: dict[str, str], name: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a function that writes and reads a model in a file of another folder.

    It calls Keras's or TensorFlow's, which has an argument `filepath` or `export_dir`.
    Files that have been written are in `copies`, by the path that was given.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(original)
        given = signature.bind(*args, **kwargs)
        names = signature.parameters.keys() & {"filepath", "export_dir"}
        for argument in names & given.arguments.keys():
            path = given.arguments[argument]
            # An open file, such as one in memory, is this task's.
            if isinstance(path, (str, os.PathLike)):
                is_read = name.startswith("load")
                given.arguments[argument] = _own_path(path, folder, copies, is_read)
        return original(*given.args, **given.kwargs)

    return call


def _own_path(
    path: str | os.PathLike[str], folder: str, copies: dict[str, str], is_read: bool
) -> str | os.PathLike[str]:
    """Returns the path in a task's own folder; see `_elsewhere`."""
    place = os.path.abspath(path)
    # One function that is replaced may call another one.
    if place in copies.values():
        return path
    if not is_read:
        own = os.path.join(folder, str(len(copies)), os.path.basename(place))
        copies.setdefault(place, own)
        os.makedirs(os.path.dirname(copies[place]), exist_ok=True)
    return copies.get(place, path)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a file as `python path arguments` does, or `python -m` if it has to.

    Raises:
      BaseException: The program raised it.
    """
    argv, paths = sys.argv, list(sys.path)
    program = pathlib.Path(os.path.abspath(path))
    package = package_of(program)
    sys.argv = [path, *arguments]
    # Python puts this folder there, in place of the present one.
    sys.path.insert(0, str(program.parents[len(package)]))
    try:
        if package:
            name = ".".join([*package, program.stem])
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            with files_without_package():
                runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, paths


def failure_of_script(
    path: str, arguments: Sequence[str], error: BaseException, runs_in_several: bool
) -> UsageError:
    """Returns one line on an error that a program raised.

    `runs_in_several` is True if several workers run the program.
    """
    if parser_that_ended(error):
        received = shown(shlex.join(arguments)) if arguments else "none"
        return UsageError(
            f"--script={path} refuses its arguments ({received}), and its message is "
            "above: correct the arguments, which follow after --."
        )
    place = subject_of_program(path, error)
    if isinstance(error, UsageError):
        # What stands for a strategy of the program says itself what to change.
        return UsageError(f"{place.removesuffix(',')}: {error}")
    remedy = "correct it"
    # Programs also raise RuntimeError where they find a lock file.
    if runs_in_several and isinstance(error, (OSError, RuntimeError)):
        remedy += (
            ". Every worker runs the program, which must accept files that another "
            "worker has made (exist_ok=True) or removed"
        )
    return failure_of(place, error, is_in_step=False, remedy=remedy)


# They print a message and call sys.exit, if a command line is not accepted.
_PARSERS = ("argparse", "click", "absl")


def parser_that_ended(error: BaseException) -> str:
    """Returns the package whose parser of arguments ended a program, or an empty text.

    `absl.app.run` also calls a program's `main`, and `sys.exit` with its result.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not isinstance(error, SystemExit) or frames[-1].f_code.co_name == "_run_main":
        return ""
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0]
    return package if package in _PARSERS else ""
