"""Callbacks of Keras in a run whose model is no program (`--callbacks`)."""

import math

import keras

from models import factories
from strategies.common.errors import UsageError
from trainers.keras_program.epochs import Epochs
from trainers.keras_program.fit_arguments import FitArguments
from trainers.loop.parts import TrainingParts
from trainers.user_code import kind_of, wrap_user_errors


def epochs_of_run(parts: TrainingParts, is_chief: bool) -> Epochs | None:
    """Returns the epochs of a run, at whose ends callbacks run; None without any.

    Raises:
      UsageError: The function of --callbacks returns something else.
    """
    name = parts.config.model.callbacks
    if name is None:
        return None
    with wrap_user_errors(f"--callbacks={name}"):
        made = factories.factory(name, "callbacks")()
    callbacks = list(made) if isinstance(made, (list, tuple)) else [made]
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(
                f"--callbacks={name} returned {kind_of(callback)}: return a list of "
                "keras.callbacks.Callback objects."
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UsageError(
                f"--callbacks={name} returned a BackupAndRestore, which would load its "
                "weights over those of a checkpoint: leave it out; --resume=auto "
                "continues a run."
            )
    arguments = FitArguments(
        epochs=math.ceil(parts.train_steps / parts.order.steps_per_epoch),
        verbose=0,
        callbacks=callbacks,
    )
    return Epochs(arguments, parts, is_chief)
