"""The user's own models and data, and errors in them."""

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

from models.factories import FactoryError
from models.name_collisions import OWN_PACKAGES
from strategies.common.errors import UsageError, is_out_of_memory, missing_device
from strategies.common.text import one_line, printable

# Enough for the cause, which Keras puts after the names of all layers around it.
_MOST_CHARACTERS = 300
# What Keras puts around the error of a layer: whose call it was, and its arguments.
_AROUND = re.compile(
    r"Exception encountered when calling [\w.]+\(\)\. | Arguments received by .*"
)
# How TensorFlow names the type.
OF_DOUBLES = re.compile(r"\b(?:float64|double)\b")
# Its errors about two shapes that do not fit, or a size that no trace knows.
_OF_SHAPES = re.compile(
    r"must be equal|ncompatible shapes|broadcastable|(?:annot|to) reshape|"
    r"(?:imensions?|hapes?|izes?)\b[^`]*must match|"
    r"convert (?:elements of \(None|a partially known TensorShape)"
)


class PerBatchError(UsageError):
    """Error for a loss or metric of a whole batch, and not of each example."""


@contextlib.contextmanager
def wrap_user_errors(what: str) -> Iterator[None]:
    """Turns any error of the block into a one-line error that names its source.

    Args:
      what: Subject of the message, such as a flag with the name of a function.

    Raises:
      UsageError: The kind of error and its message; --verbose shows where it was.
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except FactoryError as error:
        raise UsageError(str(error)) from error
    except BaseException as error:
        if what.startswith(_PROGRAM):
            what = subject_of_program(what.removeprefix(_PROGRAM), error)
        raise failure_of(what, error) from error


def subject_of_program(path: str, error: BaseException) -> str:
    """Returns `--script=` with the file and line of the user's last call in an error.

    Where code of this project is further in, it is the program's own last line.
    """
    place = _last_place(error)
    if place is None:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(frame.filename) == os.path.abspath(path)
        ]
        place = f"{path}, line {lines[-1]}," if lines else ""
    if not place or place.startswith(f"{path}, line "):
        return f"{_PROGRAM}{place or path}"
    return f"{_PROGRAM}{path}: {place}"


_PROGRAM = "--script="


def failure_of(
    what: str,
    error: BaseException,
    is_in_step: bool = True,
    remedy: str = "correct it",
) -> UsageError:
    """Returns one line on an error in the user's code; its subject is `what`.

    `is_in_step` is False if no step has called the code.
    """
    if isinstance(error, SystemExit):
        return ended(what, error)
    words = printable(_AROUND.sub("", one_line(error)))
    if len(words) > _MOST_CHARACTERS:
        words = words[:_MOST_CHARACTERS] + "..."
    # A launcher imports this module too, and has no use for Keras.
    import keras

    if is_in_step and _OF_SHAPES.search(words):
        # The step may be right for whole batches, as with Keras.
        remedy += (
            " (replicas get parts of a batch: take its size from the inputs, by "
            "keras.ops.shape(inputs)[0])"
        )
    if "Mixing different tf.distribute.Strategy" in words:
        remedy += " (an optimizer that another one calls has to be its attribute)"
    if keras.config.floatx() == "float64" and OF_DOUBLES.search(words):
        # Some layers and metrics of Keras 3.15 take no float64, such as RandomRotation.
        remedy += ", or leave out --dtype=float64"
    return UsageError(
        f"{what} failed ({type(error).__name__}: {words}): {remedy}; --verbose shows "
        "where."
    )


def kind_of(value: Any) -> str:
    """Returns what kind of thing a function has returned, in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"


@contextlib.contextmanager
def errors_of_steps() -> Iterator[None]:
    """Turns an error that the user's code raises in a step into a one-line error.

    Steps run the code of layers, regularizers, optimizers and the like, where no call
    is known to be the user's before it fails. A lack of memory is no fault of a line,
    and `trainers.cli.app` describes devices that are missing without soft placement.

    Raises:
      UsageError: The file and line of the user's last call, the kind of error and its
        message.
    """
    try:
        yield
    except Exception as error:
        is_other = is_out_of_memory(error) or missing_device(error) is not None
        if isinstance(error, UsageError) or is_other:
            raise
        place = _last_place(error)
        if place is None:
            raise
        raise failure_of(place, error) from error


def _last_place(error: BaseException) -> str | None:
    """Returns the last file and line; None if a call of this project is further in."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").partition(".")[0] in OWN_PACKAGES:
            break
        path = frame.f_code.co_filename
        if "__autograph_generated_file" in path:
            # The message says where in the user's file.
            return "a tf.function"
        if not (path.startswith(_OF_LIBRARIES) or _ELSEWHERE.search(path)):
            return f"{path}, line {line},"
    return None


# Python names frames that have no file in angle brackets.
_OF_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
)
# Packages of the system, of a user, or of another environment that this one sees.
_ELSEWHERE = re.compile(r"/(?:site|dist)-packages/")


def ended(what: str, error: SystemExit) -> UsageError:
    """Returns the error for code of the user that ends the program.

    Its exit code would be taken for that of the run: 0 for done, 3 for diverged.
    """
    code = "" if error.code is None else repr(error.code)
    return UsageError(
        f"{what} calls sys.exit({printable(code[:100])}), which would end the run as "
        "if it were over: leave the call out, or raise an error that says what is "
        "wrong."
    )


def plain_variable_error(variable: Any) -> UsageError:
    """Returns the error for a `tf.Variable` that a step assigns."""
    return UsageError(
        f"the tf.Variable {variable.name!r} of shape {variable.shape} is assigned in a "
        "step, where replicas have no values of their own for it: make it with "
        "add_weight(trainable=False) of the model or layer, or add_variable of the "
        "metric."
    )


def shared_variable_error(variable: Any) -> UsageError:
    """Returns the error for a variable that the update of every replica assigns."""
    return UsageError(
        f"the variable {variable.name!r} of shape {variable.shape} is assigned in the "
        "update of each replica, as by a constraint, a schedule or an optimizer that "
        "does not own it: make it an optimizer's by add_variable, assign it in a "
        "callback, or choose --strategy=tower."
    )


def without_weights(title: str, model: Any) -> UsageError:
    """Returns the error for a model, named by its title, with nothing to train."""
    return UsageError(
        f"{title} has no weights to train: none of its layers has weights with "
        f"trainable=True ({len(model.variables)} variables are frozen); "
        "set it on the layers to train, before the model is compiled."
    )
