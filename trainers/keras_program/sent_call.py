"""A call of `fit` in a notebook, sent to the processes of a run and back.

The processes of a strategy are not the notebook's. What the notebook has made, classes
and functions of its cells included, travels in files (`cloudpickle`; the model in
Keras's own format), and trained values come back in one.
"""

import contextlib
import dataclasses
import pathlib
import pickle
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import keras

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import (
    TrainableFlags,
    flat_layers,
    set_trainable_flags,
    trainable_flags,
    trained_as_traced,
)
from strategies.common.private_apis.optimizers import weights_of
from strategies.common.private_apis.replaced import replaced_in
from strategies.common.text import one_line
from trainers.keras_program.callback_state import restored_history, state_of_history

_MODEL, _CALL, _TRAINED = "model.keras", "call.pickle", "trained.pickle"
# Places and values of an optimizer; None for one without a state.
_State = tuple[Sequence[int], Sequence[Any]] | None
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
          UsageError: The model is not compiled, or it or an argument cannot be written
            as it is.
        """
        _check_model(model)
        try:
            # What was frozen or thawed since has no effect before `compile`.
            with trained_as_traced(model):
                model.save(self.folder / _MODEL)
                flags = trainable_flags(model)
            state = _state_of_optimizer(model)
            compiled = keras.saving.serialize_keras_object(model.get_compile_config())
        except Exception as error:
            raise UsageError(
                f"fit cannot send the model to other processes ({_words(error)}): "
                "write the program to a file, and give it as --script."
            ) from error
        of_model = flags, compiled, state
        precision = keras.config.floatx(), keras.config.dtype_policy()
        content = _of_notebook(), precision, of_model, args, dict(kwargs)
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
        custom_objects, (floatx, policy), of_model, args, kwargs = content
        # Layers that a class makes have these. A flag may override Keras's defaults.
        if (floatx, policy.name) != ("float32", "float32"):
            keras.config.set_floatx(floatx)
            keras.config.set_dtype_policy(policy)
        # Classes of cells are in no module that this process could import.
        with keras.saving.custom_object_scope(custom_objects):
            model = self._sent_model(*of_model)
            history = model.fit(*args, **kwargs)
        build_config = keras.saving.serialize_keras_object(model.get_build_config())
        weights, state = model.get_weights(), _state_of_optimizer(model)
        found = build_config, weights, state, state_of_history(history)
        (self.folder / _TRAINED).write_bytes(pickle.dumps(found))

    def _sent_model(
        self, flags: TrainableFlags, compiled: Any, state: _State
    ) -> keras.Model:
        path = self.folder / _MODEL
        model = keras.saving.load_model(path, compile=False, safe_mode=False)
        set_trainable_flags(model, flags)
        # A loss may be a lambda of the notebook.
        keras.config.enable_unsafe_deserialization()
        # Keras would build the optimizer, for all that is trainable, if it were built.
        with replaced_in(model, "built", False):
            model.compile_from_config(compiled)
        _set_state_of_optimizer(model, state)
        return model

    def receive(self, model: keras.Model) -> keras.callbacks.History:
        """Gives a model what it has become, and returns what `fit` returned."""
        content = pickle.loads((self.folder / _TRAINED).read_bytes())
        build_config, weights, state, logs = content
        if not model.built:
            found = keras.saving.deserialize_keras_object(build_config)
            model.build_from_config(found)
        model.set_weights(weights)
        _set_state_of_optimizer(model, state)
        history = keras.callbacks.History()
        history.set_model(model)
        history.epoch, history.history = restored_history(logs)
        return history


def _check_model(model: keras.Model) -> None:
    """Refuses a model of which Keras's file would not keep all that `fit` needs."""
    if not model.compiled:
        raise UsageError("fit gets a model that is not compiled: compile it first.")
    kind = type(model)
    is_own = kind.compile is not keras.Model.compile
    if is_own and kind.compile_from_config is keras.Model.compile_from_config:
        raise UsageError(
            f"fit cannot send what {kind.__name__} is compiled with, because it has a "
            "compile of its own: give it get_compile_config and compile_from_config, "
            "or write the program to a file, and give it as --script."
        )
    names = ("call", "train_step", "test_step", "compute_loss", "compute_metrics")
    for layer in flat_layers(model):
        for name in vars(layer).keys() & names:
            raise UsageError(
                f"fit cannot send the {name} that was set on {layer.name!r} alone: "
                "make it a method of a class, or write the program to a file, and give "
                "it as --script."
            )


def _state_of_optimizer(model: keras.Model) -> _State:
    """Returns the places of an optimizer's weights in the model, and its values."""
    optimizer = model.optimizer
    # A step of the model may have other optimizers, which are not sent.
    if optimizer is None or not optimizer.built:
        return None
    places = {id(weight): place for place, weight in enumerate(model.weights)}
    trained = [id(weight) for weight in weights_of(optimizer)]
    if not places.keys() >= {*trained}:
        raise ValueError("its optimizer was built for weights of another model")
    return (
        [places[key] for key in trained],
        [variable.numpy() for variable in optimizer.variables],
    )


def _set_state_of_optimizer(model: keras.Model, state: _State) -> None:
    """Gives the optimizer of a model the state that another model's had."""
    if state is None:
        return
    places, values = state
    if not model.optimizer.built:
        model.optimizer.build([model.weights[place] for place in places])
    for variable, value in zip(model.optimizer.variables, values, strict=True):
        variable.assign(value)


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
