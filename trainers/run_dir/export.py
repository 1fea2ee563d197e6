"""Models that leave: a Keras file or a SavedModel, the same from every strategy.

Under a strategy variables are copies, or on servers, and a model that is saved there
has that in it. So a plain model is built beside it, and given the values.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Sequence

import keras
import numpy as np

from strategies.common.errors import UsageError
from strategies.common.text import one_line

BEST, LAST = "best", "last"
KERAS, SAVED_MODEL = "keras", "saved_model"
_SUFFIX = ".keras"


class Exports:
    """Writes the present state of a model."""

    def __init__(
        self,
        folder: pathlib.Path,
        forms: Sequence[str],
        model: keras.Model,
        rebuild: Callable[[], keras.Model],
    ):
        """Writes nothing yet.

        Args:
          folder: for all exports; made when it is needed.
          forms: of KERAS and SAVED_MODEL.
          model: that is trained, under any strategy.
          rebuild: makes it once more, under none.
        """
        self._folder = folder
        self._forms = forms
        self._model = model
        self._rebuild = rebuild
        self._plain: keras.Model | None = None

    def write(self, name: str) -> None:
        """Writes BEST or LAST in every form, in place of what was there.

        Raises:
          OSError: the disk is full, for one.
        """
        plain = self._with_present_values()
        self._folder.mkdir(exist_ok=True)
        for form in self._forms:
            _WRITERS[form](plain, self._folder, name)

    def _with_present_values(self) -> keras.Model:
        if self._plain is None:
            self._plain = self._rebuild()
            # Neither the optimizer nor a user's loss is needed to predict, and to be
            # read such a file would need the loss's code.
            self._plain.compiled = False
        self._plain.set_weights(self._model.get_weights())
        return self._plain


def read_keras(path: str, like: keras.Model) -> None:
    """Gives a model the weights of a Keras file.

    Nothing in the file is run: Keras refuses layers that hold code, and those of a
    user's own must be known to it already (`keras.saving.register_keras_serializable`).

    Args:
      path: as `Exports` writes it.
      like: whose weights are to be replaced.

    Raises:
      UsageError: it cannot be read, or is of another model.
    """
    flag = f"--exported_model={path}"
    if not path.endswith(_SUFFIX):
        raise UsageError(
            f"{flag} is no {_SUFFIX} file: give one. A SavedModel or an .h5 file can "
            "run code when it is read, and is not."
        )
    try:
        found = keras.saving.load_model(path, compile=False, safe_mode=True)
        values = found.get_weights()
    except Exception as error:
        words = one_line(error)[:200]
        raise UsageError(
            f"{flag} cannot be read ({words}): give a file that was exported."
        ) from error
    _assign(values, like, flag)


def _assign(values: Sequence[np.ndarray], like: keras.Model, flag: str) -> None:
    shapes = [tuple(value.shape) for value in values]
    if shapes != [tuple(weight.shape) for weight in like.weights]:
        raise UsageError(
            f"{flag} is of another model than --run_dir, with weights of other shapes: "
            "give a file of this run."
        )
    like.set_weights(values)


def _write_keras(model: keras.Model, folder: pathlib.Path, name: str) -> None:
    temporary = folder / f".writing{_SUFFIX}"
    model.save(temporary)
    temporary.replace(folder / f"{name}{_SUFFIX}")


def _write_saved_model(model: keras.Model, folder: pathlib.Path, name: str) -> None:
    temporary, path = folder / ".writing_saved_model", folder / f"{name}_saved_model"
    shutil.rmtree(temporary, ignore_errors=True)
    model.export(temporary, verbose=False)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)


_WRITERS = {KERAS: _write_keras, SAVED_MODEL: _write_saved_model}
