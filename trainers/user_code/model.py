"""A model from a factory in the user's code."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from models import factories
from models.base import Build, Examples, Settings
from models.objective import Objective, Weighted, labels_of
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import build_metrics, flat_layers
from strategies.common.private_apis.variables import make_anew
from strategies.common.text import one_line
from strategies.common.types import Batch
from trainers.config.model import ModelConfig
from trainers.inputs.sources import Data
from trainers.user_code import kind_of, wrap_user_errors
from trainers.user_code.checks import (
    check_ids,
    check_methods,
    check_states,
    check_values,
    labels_blamed,
)
from trainers.user_code.few_examples import few_examples
from trainers.user_code.losses import CompiledObjective, objective_of
from trainers.user_code.probe import probe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CustomModel:
    """A model from a user's factory; satisfies `models.base.TrainableModel`.

    Attributes:
      build: Function that makes the model and its variables.
      loss: Keras's name of the loss; None for the compiled one.
      metrics: Keras's names of the metrics; None for the compiled ones.
      few: Function that returns a small batch of valid examples.
      data: All of the examples.
      flag: Flag named in messages.
      compiled_optimizer: Optimizer to train with; None for that of the settings.
      own_objective: Objective of a model that computes its loss itself; None for the
        compiled one.
      is_of_program: True for the model of a program that calls `fit`.
    """

    build: Build
    loss: str | None
    metrics: Sequence[str] | None
    few: Callable[[], Batch]
    data: Data
    flag: str
    compiled_optimizer: keras.optimizers.Optimizer | None = None
    own_objective: Objective | None = None
    is_of_program: bool = False

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """Returns the objective of a model; see `TrainableModel`."""
        if label_smoothing:
            raise UsageError(
                f"--set=optimizer.label_smoothing={label_smoothing} is not used with "
                "a model of your own: compile it with a loss that smooths labels."
            )
        with wrap_user_errors(self.flag):
            if self.own_objective is not None:
                return self.own_objective
            objective = self.compiled_objective(model)
            remark = check_values(objective, model, self.few())
        return dataclasses.replace(objective, evaluation_remark=remark)

    def compiled_objective(self, model: keras.Model) -> CompiledObjective:
        """Returns the objective of `fit`, example by example.

        Raises:
          PerBatchError: A loss or metric has no values of examples.
          UsageError: The loss does not fit the model or its data.
        """
        few = self._few_with_weights()
        # Keras's models adapt the ranks of their inputs only where they are called.
        examples = probe(model, few)
        loss = self.loss or getattr(model, "loss", None)
        names = getattr(model, "output_names", None)
        # Keras computes the loss of these examples to find out what it is made of.
        check_ids(loss, names, self.data, few, examples.predictions)
        with labels_blamed(examples.labels, examples.predictions):
            objective = objective_of(
                model, self.loss, self.metrics, examples, self.is_of_program
            )
        build_metrics(model, labels_of(few.labels), examples.predictions)
        return dataclasses.replace(
            objective,
            weighs_rows=_weighs(objective, model, few),
            outputs=examples.predictions,
        )

    def _few_with_weights(self) -> Batch:
        """Returns a small batch, with sample weights if any examples have some."""
        few, held_out = self.few(), self.data.evaluation
        if (
            isinstance(few.labels, Weighted)
            or self.data.sample_source is held_out
            or not held_out.num_examples
        ):
            return few
        # Metrics and losses are made once, for both kinds of batches.
        validated = few_examples(held_out)
        return validated if isinstance(validated.labels, Weighted) else few


def _weighs(objective: CompiledObjective, model: keras.Model, few: Batch) -> bool:
    """Returns whether examples have unequal weights in the mean of a loss."""

    def trace(batch: Batch) -> Any:
        with keras.StatelessScope():
            return objective.weights_of_rows(model, batch)

    traced = tf.function(trace, autograph=False).get_concrete_function(few)
    return bool(traced.structured_outputs)


def custom_model(config: ModelConfig, data: Data) -> CustomModel:
    """Returns the model of --model=package.module:factory.

    Raises:
      UsageError: There is no such factory.
    """
    flag = f"--model={config.model}"
    with wrap_user_errors(flag):
        make = factories.factory(config.model, "model", "a description of the data")

    # Read once, and only if it is needed.
    few = functools.cache(lambda: few_examples(data.sample_source))
    before: list[keras.Model] = []

    def build(data: Examples, settings: Settings) -> keras.Model:
        with wrap_user_errors(flag):
            model, created = _made(make, data, flag)
            check_methods(model)
            check_states(model)
            model = _with_own_variables(model, created, before, flag)
            build_with(model, few)
        before.append(model)
        return model

    return CustomModel(
        build=build,
        loss=config.loss,
        metrics=config.metrics,
        few=few,
        data=data,
        flag=flag,
    )


def _made(
    make: Callable[..., Any], data: Examples, flag: str
) -> tuple[keras.Model, Collection[int]]:
    """Returns a factory's model, and the ids of variables that the factory made."""
    created: dict[int, tf.Variable] = {}

    def note(make_next: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        variable = make_next(**settings)
        created[id(variable)] = variable
        return variable

    with tf.variable_creator_scope(note):
        model = make(data) if factories.needs_an_argument(make) else make()
    if not isinstance(model, keras.Model):
        raise UsageError(f"{flag} returned {kind_of(model)}: return a keras.Model.")
    return model, created.keys()


def _with_own_variables(
    model: keras.Model,
    created: Collection[int],
    before: Sequence[keras.Model],
    flag: str,
) -> keras.Model:
    """Returns a model all of whose variables are the present strategy's.

    The model may have layers, or be one, that the module of its factory has made
    before: other variables than those with the `created` ids.
    """
    variables = [v for v in model.variables if id(v.value) not in created]
    in_use = {id(variable) for other in before for variable in other.variables}
    if any(id(variable) in in_use for variable in variables):
        # The other one is being trained, under a strategy that this one is not of.
        return _copied(model, flag)
    for variable in variables:
        make_anew(variable)
    return model


def _copied(model: keras.Model, flag: str) -> keras.Model:
    try:
        return keras.models.clone_model(model)
    except Exception as error:
        raise UsageError(
            f"{flag} returned layers that it has returned before, where a second "
            f"model is needed, and Keras cannot copy them ({one_line(error)[:200]}): "
            "make all layers inside of the function."
        ) from error


def build_with(model: keras.Model, few: Callable[[], Batch]) -> None:
    """Makes the variables of a model that makes them when it is called."""
    # Keras raises an error as well, or warns again when a step is traced.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not (model.built and model.variables):
            model(_specified(few().features))
        # Keras does not build the cell of a recurrent layer, whose shapes it knows
        # without a call. In a graph a strategy could not make mirrored variables.
        if not all(layer.built for layer in flat_layers(model)):
            model(few().features, training=False)


def _specified(features: Any) -> Any:
    """Returns symbolic tensors like given ones, for any number of examples."""
    return tf.nest.map_structure(
        lambda one: keras.KerasTensor([None, *one.shape[1:]], one.dtype.name), features
    )
