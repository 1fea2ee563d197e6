"""The model of a program: lent to a strategy for the time of a `fit`."""

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any, NoReturn

import keras
import tensorflow as tf

from models.base import Examples, Settings
from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import compiled_with
from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.optimizers import (
    build_optimizer_anew,
    is_multi_optimizer,
    keep_excluded_from_weight_decay,
    restore_methods,
    schedule_of,
)
from strategies.common.private_apis.variables import lend_variables, put_back_later
from strategies.common.types import Batch
from trainers.config.config import Config
from trainers.inputs.sources import Data
from trainers.keras_program.lent_model.traced_functions import (
    TracedFunctions,
    TracedModels,
)
from trainers.model.optimizers.build import adopt_again
from trainers.model.optimizers.loss_scale import (
    check_scale,
    inside_of_scale,
    wrapper_of,
)
from trainers.model.optimizers.several import (
    SeveralOptimizers,
    inner_of,
    parts_of,
    variables_of,
)
from trainers.user_code import PerBatchError, wrap_user_errors
from trainers.user_code.checks import (
    check_loaded,
    check_loop,
    check_states,
    has_own_step,
    remark_on_methods,
)
from trainers.user_code.few_examples import EXAMPLES_OF_A_STEP, few_examples
from trainers.user_code.fixed_rows import fixed_rows
from trainers.user_code.model import CustomModel, build_with
from trainers.user_code.own_step.objective import OwnStep
from trainers.user_code.own_step.probe import own_step
from trainers.user_code.state_remark import forward_remark


class LentModel:
    """A program's compiled model, whose variables a strategy owns while it trains.

    The program holds the same Keras objects before and after: only the `tf.Variable`s
    below them are others during training.

    Attributes:
      model: The program's model.
      remark: Warning about what replicas cannot do alike, after `spec`; None for none.
      remark_of_any: Warning about what one replica, too, does otherwise than `fit`.
    """

    def __init__(self, model: keras.Model, flag: str, traced: TracedModels):
        """Lends nothing yet.

        Args:
          model: Compiled model, perhaps not built yet.
          flag: Name of the program in messages.
          traced: Models of the program that may share layers with it.
        """
        self.model = model
        self.remark: str | None = None
        self.remark_of_any: str | None = None
        self._flag = flag
        self._give_back: Callable[[], None] | None = None
        # Puts back what the strategy has made for an earlier `fit`.
        self._put_back: Callable[[], None] = _refuse_to_lend_again
        self._functions = TracedFunctions(model, traced)
        # Ids of the variables that a step updates; None for all that are trainable.
        self._trained: set[int] | None = None
        self._changed: list[tuple[keras.Variable, bool]] = []
        self._scale_factors: list[tuple[keras.optimizers.Optimizer, float | None]] = []
        # Losses are scaled by the training loop, which repeats an overflowing step.
        self._optimizer = inside_of_scale(model.optimizer)

    def spec(self, data: Data, config: Config) -> CustomModel:
        """Returns a description of the model that can be built in a strategy's scope.

        Given settings of the configuration take precedence over the program's.
        """
        with wrap_user_errors(self._flag):
            few = few_examples(data.sample_source)
            rows = fixed_rows(self.model, few.features)
            if rows is not None:
                few = few_examples(data.sample_source, rows)
        compiled = CustomModel(
            build=self.build,
            loss=None,
            metrics=None,
            few=lambda: few,
            data=data,
            flag=self._flag,
            is_of_program=True,
        )
        with wrap_user_errors(self._flag):
            check_states(self.model)
            check_loaded(self.model)
            check_scale(self.model.optimizer)
            remarks = [remark_on_methods(self.model)]
            check_loop(self.model)
            objective = self._own_objective(compiled, rows)
            if objective is not None:
                self.remark = objective.remark
                remarks.append(objective.remark_of_any)
                self._take_optimizers(objective)
            self.remark_of_any = "; ".join(filter(None, remarks)) or None
        chosen = self._optimizer
        is_one = isinstance(chosen, keras.optimizers.Optimizer)
        calls_others = is_one and (is_multi_optimizer(chosen) or inner_of(chosen))
        if calls_others and not chosen.built:
            # Outside of a strategy, because the optimizers that it calls were made so.
            chosen.build(self.model.trainable_variables)
        self._prepare()
        return dataclasses.replace(
            compiled,
            compiled_optimizer=self._chosen_optimizer(config),
            own_objective=objective,
        )

    def build(self, data: Examples, settings: Settings) -> keras.Model:
        """Returns the model, or a copy while it trains, with variables of the scope."""
        del data, settings
        with wrap_user_errors(self._flag):
            return self._lend()

    def _own_objective(self, compiled: CustomModel, rows: int | None) -> OwnStep | None:
        """Returns the objective that a step of whole batches computes.

        It is None for a compiled loss, which is computed for each example.
        """
        model, data = self.model, compiled.data
        has_labels = bool(tf.nest.flatten(compiled.few().labels))
        if not (has_labels or has_own_step(model)) and getattr(model, "loss", None):
            raise UsageError(
                "fit has no labels (y), and the model is compiled with a loss: "
                "give labels, or compile it without."
            )
        # Without a compiled loss, losses of layers are minimized, without labels.
        has_loss = has_labels and getattr(model, "loss", None) is not None
        trained = few_examples(data.train, rows or EXAMPLES_OF_A_STEP)
        if has_loss and not (has_own_step(model) or _keeps_metrics(model)):
            # A model of a fixed number of rows cannot compute halves of a batch.
            halved = trained if rows is None else None
            # Otherwise Keras's own step computes what is of whole batches, as if the
            # model's class had one.
            with contextlib.suppress(PerBatchError):
                self.remark = _remark_on_examples(model, compiled, halved)
                return None
        return own_step(model, trained, _held_out(data, rows), rows)

    def _take_optimizers(self, objective: OwnStep) -> None:
        """Trains with the optimizers that a step calls, and only their variables."""
        # Also a single one, whose variables may be in an order of the step's.
        self._optimizer = SeveralOptimizers(objective.updates, self._optimizer)
        self._trained = {id(v) for _, own in objective.updates for v in own}

    def _prepare(self) -> None:
        """Changes what `take_back` restores."""
        if self._trained is not None:
            # Others, such as weights of a teacher, have no part in weight decay either.
            # A step may set `trainable` of what it updates.
            flags = [(v, v.trainable) for v in self.model.weights]
            self._changed = [(v, f) for v, f in flags if f != (id(v) in self._trained)]
        for variable, flag in self._changed:
            variable.trainable = not flag
        self._scale_factors = []
        for optimizer, _ in parts_of(self._optimizer, []):
            # It divides gradients of a loss that nothing here multiplies by it.
            self._scale_factors.append((optimizer, optimizer.loss_scale_factor))
            optimizer.loss_scale_factor = None

    def _chosen_optimizer(self, config: Config) -> keras.optimizers.Optimizer | None:
        """Returns the compiled optimizer; None if a flag chooses another one."""
        if "optimizer" in config.given:
            return None
        (optimizer, _), *others = parts_of(self._optimizer, [])
        if "learning_rate" in config.given:
            if others:
                raise UsageError(
                    f"--learning_rate={config.optimizer.learning_rate} does not fit a "
                    "step with several optimizers: change it in the program."
                )
            if schedule_of(optimizer) is not None:
                raise UsageError(
                    f"--learning_rate={config.optimizer.learning_rate} does not fit "
                    "the schedule that the model is compiled with: leave it out, or "
                    "give --optimizer as well."
                )
            optimizer.learning_rate = config.optimizer.learning_rate
        return self._optimizer

    def _lend(self) -> keras.Model:
        """Makes the variables anew in the present scope, and returns the model."""
        if self._give_back is not None:
            # Where a second model is needed, the first one is being trained.
            return _copy_of(self.model)
        for optimizer, _ in parts_of(self._optimizer, []):
            keep_excluded_from_weight_decay(optimizer, self.model.variables)
        self._give_back = lend_variables(self.model.variables)
        self._functions.exchange()
        return self.model

    def lend_again(self, config: Config, scaled: Callable[[Any], Any]) -> None:
        """Puts the variables of the last `fit` back, with the program's present values.

        This is in the scope of the strategy that has made them. `scaled` is a function
        from a learning rate to that of a step.
        """
        # A given rate holds for every `fit`.
        self._chosen_optimizer(config)
        self._prepare()
        self._give_back = put_back_later(self.model.variables)
        self._put_back()
        self._functions.exchange()
        adopt_again(self._optimizer, scaled)

    def take_back(self) -> None:
        """Gives the trained values to the program, outside of a strategy's scope."""
        if self._give_back is None:
            return
        self._put_back = put_back_later(self.variables())
        # First the weights: the optimizer finds its variables by theirs.
        self._give_back()
        self._give_back = None
        self._functions.exchange()
        weights = self.model.trainable_variables
        wrapper = wrapper_of(self.model)
        wrapping = [] if wrapper is None else [(wrapper, weights)]
        for optimizer, variables in (*wrapping, *parts_of(self._optimizer, weights)):
            if optimizer.built:
                build_optimizer_anew(optimizer, variables)
            restore_methods(optimizer)
        for optimizer, factor in self._scale_factors:
            optimizer.loss_scale_factor = factor
        for variable, flag in self._changed:
            variable.trainable = flag

    def variables(self) -> list[keras.Variable]:
        """Returns the variables of the model and of its optimizers."""
        return [*self.model.variables, *variables_of(self._optimizer)]

    def optimizers(self) -> list[keras.optimizers.Optimizer]:
        """Returns all optimizers that train the model, also those inside of another."""
        return [optimizer for optimizer, _ in parts_of(self._optimizer, [])]


def _refuse_to_lend_again() -> NoReturn:
    raise ValueError("the model was not lent before: build it from its description")


def _copy_of(model: keras.Model) -> keras.Model:
    """Returns a model with the same layers, and draws none of the program's numbers."""
    # Keras takes default seeds from Python's generator. Data that a thread reads
    # meanwhile rather draw from NumPy's, which is left alone.
    state = random.getstate()
    try:
        return keras.models.clone_model(model)
    finally:
        random.setstate(state)


def _keeps_metrics(model: keras.Model) -> bool:
    """Returns whether a model or its layers update metrics that are not compiled."""
    of_layers = [x for x in flat_layers(model) if not isinstance(x, keras.Model)]
    # Keras's own attributes are private.
    own = [value for name, value in vars(model).items() if not name.startswith("_")]
    is_metric = [isinstance(value, keras.metrics.Metric) for value in own]
    return any(is_metric) or any(layer.metrics for layer in of_layers)


def _remark_on_examples(
    model: keras.Model, compiled: CustomModel, halved: Batch | None
) -> str | None:
    """Returns a warning about outputs for halves of a batch; None if they need none.

    Raises:
      PerBatchError: Outputs, a loss or a metric are of whole batches.
    """
    build_with(model, compiled.few)
    given = [getattr(model, "loss", None), *compiled_with(model)]
    remark = None if halved is None else forward_remark(model, halved)
    # Tracing the model costs a second, and Keras's losses are of examples.
    if any(map(_may_be_of_batches, tf.nest.flatten(given))):
        compiled.compiled_objective(model)
    return remark


def _held_out(data: Data, rows: int | None) -> Batch | None:
    """Returns a few examples to evaluate on; None if there are none."""
    if not data.evaluation.num_examples:
        return None
    return few_examples(data.evaluation, rows or EXAMPLES_OF_A_STEP)


# Functions of keras/src/losses/losses.py: ratios of sums over a batch, and comparisons
# of the examples of a batch.
_OF_BATCHES = ("dice", "tversky", "circle")


def _may_be_of_batches(given: Any) -> bool:
    """Returns whether a compiled loss or metric may be of whole batches.

    One of the program's own may be, and few of Keras's.
    """
    if given is None or isinstance(given, (float, int)):
        return False
    if isinstance(given, str):
        return given.lower() in _OF_BATCHES
    function = getattr(given, "_fn", None) or getattr(given, "fn", given)
    named = getattr(given, "_fn_kwargs", {})
    # Such as a correlation over the examples for each of several outputs.
    if getattr(function, "__name__", "") in _OF_BATCHES or named.get("axis") == 0:
        return True
    module = getattr(function, "__module__", None) or type(function).__module__
    return not module.startswith("keras.")
