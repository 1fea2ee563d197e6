"""A call of `fit` in a notebook, sent to the processes of a run and back.

The processes of a strategy are not the notebook's. What the notebook has made, classes
and functions of its cells included, travels in files (`cloudpickle`; the model in
Keras's own format), and the trained model comes back in one.
"""

import contextlib
import dataclasses
import json
import pathlib
import pickle
import re
import sys
import types
import warnings
from collections.abc import Mapping
from typing import Any

import cloudpickle
import keras

from strategies.common.errors import UsageError
from strategies.common.text import one_line
from trainers.keras_program.callback_state import restored_history, state_of_history

_MODEL, _CALL, _HISTORY = "model.keras", "call.pickle", "history.json"
_TRAINED = "trained.keras"
_PROGRAM = """
import pathlib
from trainers.keras_program.sent_call import SentCall
SentCall(pathlib.Path(__file__).parents[1]).run()
"""


@dataclasses.dataclass(frozen=True, slots=True)
class SentCall:
    """Files of one call, in a folder."""

    folder: pathlib.Path

    def send(
        self, model: keras.Model, args: Any, kwargs: Mapping[str, Any]
    ) -> pathlib.Path:
        """Writes a call of `model.fit`, and returns a program that calls it.

        Raises:
          UsageError: The model is not compiled, or it or an argument cannot be written.
        """
        if not model.compiled:
            raise UsageError("fit gets a model that is not compiled: compile it first.")
        try:
            model.save(self.folder / _MODEL)
        except Exception as error:
            raise UsageError(
                f"fit cannot send the model to other processes ({_words(error)}): "
                "write the program to a file, and give it as --script."
            ) from error
        has_state = model.optimizer is not None and model.optimizer.built
        content = _of_notebook(), has_state, args, dict(kwargs)
        try:
            (self.folder / _CALL).write_bytes(cloudpickle.dumps(content))
        # Objects raise errors of any kind where they are pickled.
        except Exception as error:
            raise UsageError(
                f"fit cannot send its arguments to other processes ({_words(error)}): "
                "give arrays or a keras.utils.PyDataset, or write the program to a "
                "file, and give it as --script."
            ) from error
        # Runs are named after their program. A letter may have four bytes of the 255.
        program = self.folder / "program" / re.sub(r"[^\w-]", "_", model.name)[:60]
        program.parent.mkdir()
        program.write_text(_PROGRAM, encoding="utf-8")
        return program

    def run(self) -> None:
        """Calls `fit`, in a process of the run, and writes the trained model."""
        content = pickle.loads((self.folder / _CALL).read_bytes())
        custom_objects, has_state, args, kwargs = content
        # Classes of cells are in no module that this process could import.
        with keras.saving.custom_object_scope(custom_objects):
            model = self._sent_model(has_state)
            history = model.fit(*args, **kwargs)
            model.save(self.folder / _TRAINED)
        found = json.dumps(state_of_history(history))
        (self.folder / _HISTORY).write_text(found, encoding="utf-8")

    def _sent_model(self, has_state: bool) -> keras.Model:
        with warnings.catch_warnings():
            if not has_state:
                # Keras 3.15 builds the optimizer before it reads the state, and warns
                # that the file has none.
                warnings.filterwarnings("ignore", "Skipping variable loading for opt")
            return keras.saving.load_model(self.folder / _MODEL, safe_mode=False)

    def receive(self, model: keras.Model) -> keras.callbacks.History:
        """Gives a model what it has become, and returns what `fit` returned."""
        with keras.saving.custom_object_scope(_of_notebook()):
            trained = keras.saving.load_model(self.folder / _TRAINED, safe_mode=False)
        if not model.built:
            model.build_from_config(trained.get_build_config())
        model.set_weights(trained.get_weights())
        # A step of the model may have optimizers that the file does not keep.
        if model.optimizer is not None:
            _receive_optimizer(model, trained)
        history = keras.callbacks.History()
        history.set_model(model)
        content = json.loads((self.folder / _HISTORY).read_text(encoding="utf-8"))
        history.epoch, history.history = restored_history(content)
        return history


def _receive_optimizer(model: keras.Model, trained: keras.Model) -> None:
    """Gives the optimizer of a model the state that another model's has."""
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    found = trained.optimizer.variables
    for variable, value in zip(optimizer.variables, found, strict=True):
        variable.assign(value.value)


def _of_notebook() -> dict[str, Any]:
    """Returns the classes and functions that the program or notebook defines.

    A name is the one in the notebook, or the one by which Keras saves it.
    """
    found = {}
    for name, value in vars(sys.modules["__main__"]).items():
        kinds = type, types.FunctionType
        if isinstance(value, kinds) and value.__module__ == "__main__":
            # What cannot be sent may have nothing to do with the model. Otherwise Keras
            # says which class is missing.
            with contextlib.suppress(Exception):
                cloudpickle.dumps(value)
                # Keras looks for a registered class by another name.
                found[name] = found[keras.saving.get_registered_name(value)] = value
    return found


def _words(error: Exception) -> str:
    return one_line(error)[:200]
