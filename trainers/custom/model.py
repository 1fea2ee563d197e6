"""A model from a factory of the user's own."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from models import factories
from models.base import Build, Examples, Objective, Settings
from strategies.base import Batch
from strategies.settings import UsageError
from trainers.custom.objective import objective_of
from trainers.custom.own_code import blamed
from trainers.custom.probe import probe
from trainers.custom.step import NAME, own_objective
from trainers.inputs.data import Source
from trainers.model_config import ModelConfig

# In place of which `fit` would call them.
_OF_FIT = ("train_step", "compute_loss", "compute_metrics")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CustomModel:
    """Satisfies `models.base.TrainableModel`.

    Attributes:
      build: makes the model and its variables.
      loss: Keras's name; None for the one it is compiled with.
      metrics: Keras's names; None for those it is compiled with.
      replica_step: in place of both, if the module has it.
      few: a batch of examples that it is to take.
      flag: for messages.
    """

    build: Build
    loss: str | None
    metrics: Sequence[str] | None
    replica_step: Callable[..., Any] | None
    few: Callable[[], Batch]
    flag: str

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """See `TrainableModel`."""
        if label_smoothing:
            raise UsageError(
                f"--label_smoothing={label_smoothing} is not used with a model of your "
                "own: compile it with a loss that smooths labels."
            )
        with blamed(self.flag):
            if self.replica_step is None:
                _check_methods(model)
                return self._compiled(model)
            objective = own_objective(self.replica_step, lambda: self._compiled(model))
            _check_values(objective, model, self.few())
        return objective

    def _compiled(self, model: keras.Model) -> Objective:
        examples = probe(model, self.few())
        return objective_of(model, self.loss, self.metrics, *examples)


def custom_model(config: ModelConfig, source: Source) -> CustomModel:
    """The model of --model=package.module:factory.

    Args:
      config: names it.
      source: examples that it is to take.

    Raises:
      UsageError: there is no such factory.
    """
    flag = f"--model={config.model}"
    with blamed(flag):
        make = factories.factory(config.model, "model")
        replica_step = factories.beside(config.model, NAME)

    @functools.cache
    def few() -> Batch:
        return _few(source)

    def build(data: Examples, settings: Settings) -> keras.Model:
        with blamed(flag):
            return _built(make, data, few, flag)

    return CustomModel(
        build=build,
        loss=config.loss,
        metrics=config.metrics,
        replica_step=replica_step,
        few=few,
        flag=flag,
    )


def _built(
    make: Callable[..., Any], data: Examples, few: Callable[[], Batch], flag: str
) -> keras.Model:
    takes_data = bool(inspect.signature(make).parameters)
    model = make(data) if takes_data else make()
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"{flag} returned a {type(model).__name__}: return a keras.Model."
        )
    if not model.built or not model.variables:
        model(
            tf.nest.map_structure(
                lambda one: keras.KerasTensor([None, *one.shape[1:]], one.dtype.name),
                few().features,
            )
        )
    return model


def _few(source: Source) -> Batch:
    """A batch as a step would have it."""
    count = min(2, source.num_examples)
    indices = tf.range(count, dtype=tf.int64)
    features, labels = source.read(source.tensors(), indices)
    size = tf.constant(count, tf.int64)
    return Batch(
        step=tf.zeros([], tf.int64),
        replica=tf.zeros([], tf.int64),
        global_size=size,
        num_rows=size,
        indices=indices,
        features=features,
        labels=labels,
    )


def _check_values(objective: Objective, model: keras.Model, batch: Batch) -> None:
    """Finds now, and in nothing but a graph, what the first step would fail with."""

    def values(batch: Batch) -> None:
        with keras.StatelessScope():
            objective.values(model, batch, training=True)
        with keras.StatelessScope():
            objective.judged(model, batch)

    tf.function(values, autograph=False).get_concrete_function(batch)


def _check_methods(model: keras.Model) -> None:
    """Raises UsageError if `fit` would do something else than take a loss."""
    for name in _OF_FIT:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UsageError(
                f"{type(model).__name__} has a {name} of its own, which only fit would "
                f"call: write {NAME}(model, batch, training) beside the factory, which "
                "returns the loss of each example."
            )
