"""Model files: exports to Keras files or a SavedModel, and initial weights.

Under a strategy, variables are mirrored or placed on servers, and a model saved there
depends on this placement. The export therefore builds a plain model outside of the
strategy and copies the values, so that all strategies write the same files.
"""

import dataclasses
import errno
import os
import pathlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence

import keras

from strategies.common.errors import UsageError
from strategies.common.files import remove_path
from strategies.common.text import one_line

BEST, LAST = "best", "last"
KERAS, WEIGHTS, SAVED_MODEL = "keras", "weights", "saved_model"
_SUFFIX = ".keras"
_WEIGHTS_SUFFIX = ".weights.h5"
# More than HDF5 adds to the values of an array.
_FRAME_BYTES = 8 << 10


def _save_weights(model: keras.Model, path: pathlib.Path) -> None:
    # h5py 3.14 keeps a file that it cannot write, tries again when it deletes it,
    # prints a traceback for each failure, and has ended a process by SIGSEGV.
    needed = sum(value.nbytes + _FRAME_BYTES for value in model.get_weights())
    if shutil.disk_usage(path.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    model.save_weights(path)


# Suffix of each form, and the function that writes it.
_WRITERS: Mapping[str, tuple[str, Callable[[keras.Model, pathlib.Path], object]]] = {
    KERAS: (_SUFFIX, lambda model, path: model.save(path)),
    WEIGHTS: (_WEIGHTS_SUFFIX, _save_weights),
    SAVED_MODEL: (
        "_saved_model",
        lambda model, path: model.export(path, verbose=False),
    ),
}


@dataclasses.dataclass(slots=True)
class Exports:
    """Writer of a model's current weights.

    Attributes:
      folder: Folder of all exports, created when needed.
      forms: Formats to write: KERAS, WEIGHTS, SAVED_MODEL or several of them.
      model: Trained model, under any strategy.
      rebuild: Function that builds the model again, outside of a strategy.
    """

    folder: pathlib.Path
    forms: Sequence[str]
    model: keras.Model
    rebuild: Callable[[], keras.Model]
    _plain: keras.Model | None = dataclasses.field(default=None, init=False)

    def write(self, name: str) -> None:
        """Writes BEST or LAST in every format and replaces older files.

        Raises:
          OSError: The files cannot be written, such as on a full disk.
        """
        plain = self._with_present_values()
        self.folder.mkdir(exist_ok=True)
        for form in self.forms:
            suffix, write = _WRITERS[form]
            # Written beside the final name and renamed, so that a reader never sees a
            # part of it.
            temporary = self.folder / f".writing{suffix}"
            final = self.folder / f"{name}{suffix}"
            try:
                remove_path(temporary)
                write(plain, temporary)
                if final.is_dir():
                    # A folder cannot be renamed onto one that is not empty.
                    remove_path(final)
                temporary.replace(final)
            finally:
                # A part of it would keep a full disk full.
                remove_path(temporary)

    def _with_present_values(self) -> keras.Model:
        if self._plain is None:
            self._plain = self.rebuild()
            # Prediction needs neither the optimizer nor a loss of the user, and a file
            # with the loss could only be read with the loss's code.
            self._plain.compiled = False
        # The plain model is built once and reused by later exports.
        self._plain.set_weights(self.model.get_weights())
        return self._plain


def read_keras(path: str, like: keras.Model) -> None:
    """Loads the weights of a Keras file into a model.

    No code in the file is run: Keras rejects layers that hold code, and custom layers
    of the user must already be registered (`keras.saving.register_keras_serializable`).

    Raises:
      UsageError: The file cannot be read or holds another model.
    """
    flag = f"--exported_model={path}"
    if not path.endswith(_SUFFIX):
        raise UsageError(
            f"{flag} is no {_SUFFIX} file: give one. Others are not read, because a "
            "SavedModel or an .h5 file can run code when it is read."
        )
    try:
        found = keras.saving.load_model(path, compile=False, safe_mode=True)
        values = found.get_weights()
    except Exception as error:
        words = one_line(error)[:200]
        raise UsageError(
            f"{flag} cannot be read ({words}): give a file that was exported."
        ) from error
    shapes = [tuple(value.shape) for value in values]
    if shapes != [tuple(weight.shape) for weight in like.weights]:
        raise UsageError(
            f"{flag} is of another model than --run_dir, with weights of other shapes: "
            "give a file of this run."
        )
    like.set_weights(values)


def load_initial_weights(path: str, model: keras.Model) -> None:
    """Loads the weights of a Keras file into a new model, layer by layer.

    Nothing but the weights is read from the file, and no code in it is run.

    Raises:
      UsageError: There is no such file, or a layer has other weights.
    """
    flag = f"--initial_weights={path}"
    if not path.endswith((_SUFFIX, _WEIGHTS_SUFFIX)):
        raise UsageError(
            f"{flag} is no {_SUFFIX} or {_WEIGHTS_SUFFIX} file: give one, such as one "
            "that --export or Keras's save_weights has written."
        )
    if not pathlib.Path(path).is_file():
        raise UsageError(f"{flag} is no file: give the path of an existing one.")
    try:
        # Keras 3.15 warns of each part that the file does not have, and then raises
        # an error that names them.
        with warnings.catch_warnings(record=True) as remarks:
            model.load_weights(path)
    except Exception as error:
        raise UsageError(
            f"{flag} does not fit the model ({one_line(error)[:300]}): give the file "
            "of a model with the same layers."
        ) from error
    for remark in remarks:
        warnings.warn_explicit(
            remark.message, remark.category, remark.filename, remark.lineno
        )
