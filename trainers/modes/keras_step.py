"""The first batch of a run by Keras itself, for the first row of a verification."""

import math
import pathlib
from typing import Any

import keras
import tensorflow as tf

from models.objective import AsCompiled, predictions_of
from strategies.common.errors import UsageError
from strategies.common.text import unique_names
from strategies.common.types import Batch
from trainers.config.config import Config
from trainers.loop.parts import TrainingParts
from trainers.model.layer_switches import disable_layers
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.model.sparse_gradients import as_dense
from trainers.run_dir.step_recording import KerasStep, Recording
from trainers.user_code.losses import in_floatx

_NO_COUNTERPART = (
    "the loss is not one that keras.Model.compile takes: it is of a file in models/ "
    "without as_compiled"
)


def record_keras_step(parts: TrainingParts, run_folder: pathlib.Path) -> None:
    """Writes what Keras computes of a recorded run's first batch, from initial weights.

    Only one replica that takes whole batches has the step that `fit` would have.
    """
    strategy = parts.config.strategy
    if strategy.traits.is_distributed or strategy.gradient_accumulation_steps > 1:
        return
    # A program is compared with Keras's whole fit.
    is_program = parts.config.model.script is not None
    if is_program or not parts.config.report.record_steps:
        return
    compiled = parts.objective.compiled
    if compiled is None:
        step = KerasStep(figures={}, gradients={}, reason=_NO_COUNTERPART)
    else:
        step = _keras_step(parts, compiled)
    Recording(run_folder).write_keras(step)


def _keras_step(parts: TrainingParts, compiled: AsCompiled) -> KerasStep:
    batch = next(iter(parts.batches(0).dataset(0, 1)))
    try:
        model = _compiled_copy(parts, compiled)
    # A factory whose layers cannot be made twice: nothing is known about its training.
    except UsageError as error:
        return KerasStep(figures={}, gradients={}, reason=str(error))
    try:
        figures, gradients, predictions = _compute(model, compiled, batch, parts.config)
    # Any error of Keras is a difference: this program has accepted the model.
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return KerasStep(figures={}, gradients={}, reason=words, refused=True)
    names = unique_names([v.path for v in parts.model.trainable_variables])
    return KerasStep(
        figures={name: float(value) for name, value in figures.items()},
        gradients={
            name: gradient.numpy()
            for name, gradient in zip(names, gradients, strict=True)
            if gradient is not None
        },
        values_per_example=max(
            math.prod(one.shape[1:]) for one in tf.nest.flatten(predictions)
        ),
    )


def _compiled_copy(parts: TrainingParts, compiled: AsCompiled) -> keras.Model:
    """Returns another model with the same values; `compile` would change the run's."""
    model = parts.rebuild()
    disable_layers(model, parts.config.model.disable_layers or ())
    for copy, variable in zip(model.variables, parts.model.variables, strict=True):
        copy.assign(variable.value)
    model.compile(
        optimizer=None,
        loss=compiled.loss,
        loss_weights=compiled.loss_weights,
        metrics=compiled.metrics,
        weighted_metrics=compiled.weighted_metrics,
    )
    return model


def _compute(
    model: keras.Model, compiled: AsCompiled, batch: Batch, config: Config
) -> Any:
    """Returns figures by name, gradients of trainable variables, and predictions."""
    replays = config.model.replayable_random_numbers
    numbers = StepRandomNumbers(
        config.run.seed, ReplayedRandomNumbers() if replays else None
    )
    # The seeds that the run's own first step has, so that dropout masks are the same.
    for state, seed in numbers.keyed(seed_states(model), batch):
        state.assign(seed)
    labels = in_floatx(batch.labels)
    variables = [v.value for v in model.trainable_variables]

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            with numbers.drawn(batch):
                predictions = predictions_of(model, features, training=True)
            if compiled.labels is not None:
                labels = compiled.labels(labels, predictions)
            loss = model.compute_loss(features, labels, predictions, training=True)
        metrics = model.compute_metrics(features, labels, predictions)
        gradients = as_dense(tape.gradient(loss, variables))
        return {**metrics, "loss": tf.reduce_mean(loss)}, gradients, predictions

    return tf.function(step, autograph=False)(batch.features, labels)
