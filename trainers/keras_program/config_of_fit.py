"""The configuration of one call of `fit`."""

import math

import keras

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Data
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.streams.stream import ProgramStream


def config_of_fit(config: Config, arguments: FitArguments, data: Data) -> Config:
    """Returns the configuration of one `fit`; flags that are given override it.

    Raises:
      UsageError: A batch size is given for data that have batches, or an optimizer for
        callbacks that set the rate of the program's.
    """
    _check_rate(config, arguments)
    num_examples = data.train.num_examples
    given = arguments.batch_size
    if "global_batch_size" in config.given:
        given = config.length.global_batch_size
    size = given or _default_size(num_examples, arguments.steps_per_epoch)
    eval_size = arguments.validation_batch_size or given
    if not eval_size:
        num_held_out = data.evaluation.num_examples
        eval_size = _default_size(num_held_out, arguments.validation_steps)
    if isinstance(data.train, ProgramStream):
        if size != data.train.batch_size and "global_batch_size" in config.given:
            raise UsageError(
                f"--global_batch_size={size} does not fit data of batches of "
                f"{data.train.batch_size}: change it in the program."
            )
        size = data.train.batch_size
    if isinstance(data.evaluation, ProgramStream):
        eval_size = data.evaluation.batch_size
    train_steps = config.length.train_steps
    # A flag that says how long to train holds for every `fit` of the program.
    if train_steps is None:
        order = Order(
            num_examples=num_examples,
            global_batch_size=size,
            seed=None,
            drop_last_batch=config.drops_last_batch,
        )
        lengths = arguments.lengths(order.steps_per_epoch)
        train_steps = lengths.start(arguments.epochs - arguments.initial_epoch)
    return config.replace(
        train_steps=train_steps,
        epochs=None,
        global_batch_size=size,
        eval_global_batch_size=eval_size,
    )


def _default_size(num_examples: int, num_steps: int | None) -> int:
    """Returns Keras's batch size of arrays where `fit` has none.

    keras/src/trainers/data_adapters/array_data_adapter.py, `ArrayDataAdapter`.
    """
    if not (num_steps and num_examples):
        return 32
    return math.ceil(num_examples / num_steps)


def _check_rate(config: Config, arguments: FitArguments) -> None:
    """Refuses callbacks that would set the rate of an optimizer that does not train."""
    kinds = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    found = next((c for c in arguments.callbacks if isinstance(c, kinds)), None)
    if found is not None and "optimizer" in config.given:
        raise UsageError(
            f"--optimizer={config.optimizer.optimizer} replaces the optimizer of which "
            f"{type(found).__name__} sets the learning rate: leave one of them out."
        )
