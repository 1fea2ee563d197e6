"""What learns: a model, the variables that an update changes, and how both are used."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from models.base import Objective, TrainableModel
from strategies.base import Strategy
from strategies.settings import UsageError, one_line
from trainers.accumulation import check_accumulable
from trainers.config import Config
from trainers.inputs.data import Data
from trainers.layer_state import LayerState, layer_state_of
from trainers.model_config import ModelConfig
from trainers.optimizers import (
    LearningRate,
    LossScale,
    RateFactor,
    build_optimizer,
    needs_loss_scale,
    update_where_variables_are,
)
from trainers.pipeline.build import Pipeline, build_pipeline
from trainers.pipeline.step import PipelineStep
from trainers.replayable_dropout import ReplayableDropout
from trainers.step import EvalStep, TrainStep
from trainers.switches import switch_off
from trainers.update import ModelUpdate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learner:
    """A model in a strategy's scope.

    Attributes:
      model: with new weights.
      pipeline: the model in stages; None where it is whole.
      objective: what is minimized, and reported besides.
      optimizer: with new variables.
      learning_rate: from the number of applied updates.
      rate_factor: what it is multiplied with.
      layer_state: what besides weights training changes.
      step: int64 scalar, the number of applied updates.
      loss_scale: Factor of the loss that is differentiated; None for one.
    """

    model: keras.Model
    pipeline: Pipeline | None
    objective: Objective
    optimizer: keras.optimizers.Optimizer
    learning_rate: LearningRate
    rate_factor: RateFactor
    layer_state: LayerState
    step: tf.Variable
    loss_scale: LossScale | None

    def train_step(
        self, config: Config, strategy: Strategy
    ) -> TrainStep | PipelineStep:
        """What one replica computes of a step."""
        settings: dict[str, Any] = {
            "seed": config.run.seed,
            "dropout": _replayable_dropout(self.model, config),
            "sparse_gradients": config.optimizer.sparse_gradients,
            "jit_compile": config.model.jit_compile,
            "loss_scale": self.loss_scale,
        }
        parts = (self.objective, self.layer_state)
        if self.pipeline is not None:
            return PipelineStep(self.model, self.pipeline, *parts, **settings)
        sums_gradients = config.strategy.combine == "sum"
        return TrainStep(
            self.model,
            *parts,
            **settings,
            gradient_scale=strategy.num_replicas if sums_gradients else 1,
            differentiate=config.strategy.averaged != "losses",
            read=strategy.read,
        )

    def update(self, config: Config) -> ModelUpdate:
        """What becomes of the sum of all replicas' shares."""
        return ModelUpdate(
            self.model,
            self.optimizer,
            self.step,
            self.layer_state,
            config.optimizer.clip_global_norm,
            record_gradients=config.report.record_steps,
            sparse_gradients=config.optimizer.sparse_gradients,
            loss_scale=self.loss_scale,
        )

    def eval_step(self) -> EvalStep:
        """What one replica computes of an evaluation."""
        model = self.pipeline.staged if self.pipeline else self.model
        return EvalStep(model, self.objective, self.model.trainable_variables)


def build_learner(
    config: Config,
    strategy: Strategy,
    data: Data,
    spec: TrainableModel,
    train_steps: int,
) -> Learner:
    """Makes model and variables where the strategy wants them.

    Raises:
      UsageError: the model does not fit the settings, the data or the strategy.
    """
    if not config.model.is_custom:
        set_precision(config.model)
    keras.utils.set_random_seed(config.run.seed)
    pipeline = None
    with strategy.scope(), _refused():
        model = spec.build(data, config.model)
        _check_trainable(model, config)
        check_precision(config.model)
    # Outside of the scope, because Keras makes variables of metrics.
    with _refused():
        objective = spec.objective(model, config.optimizer.label_smoothing)
    with strategy.scope():
        switch_off(model, config.model.switch_off or ())
        rate_factor = RateFactor(may_change=config.guard.rolls_back)
        learning_rate = LearningRate(
            config.optimizer,
            train_steps,
            config.length.global_batch_size,
            rate_factor,
        )
        if config.strategy.traits.splits_model:
            pipeline = build_pipeline(model, config, strategy.devices, data.train)
        optimizer = build_optimizer(config.optimizer, learning_rate, model)
        loss_scale = LossScale(optimizer) if needs_loss_scale(model) else None
        if pipeline is not None:
            update_where_variables_are(optimizer)
        step = _make_step_variable()
    check_accumulable(model, config.strategy.gradient_accumulation_steps)
    return Learner(
        model=model,
        pipeline=pipeline,
        objective=objective,
        optimizer=optimizer,
        learning_rate=learning_rate,
        rate_factor=rate_factor,
        layer_state=layer_state_of(
            model, updates_overlap=not config.strategy.is_synchronous
        ),
        step=step,
        loss_scale=loss_scale,
    )


def _replayable_dropout(model: keras.Model, config: Config) -> ReplayableDropout | None:
    if not config.model.replayable_dropout:
        return None
    if "dropout" in (config.model.switch_off or ()):
        return None
    return ReplayableDropout(model, config.run.seed)


def _make_step_variable() -> tf.Variable:
    """Counts applied updates; under mirrored variables one replica does it for all."""
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="applied_updates",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def set_precision(config: ModelConfig) -> None:
    """Sets the types that Keras's layers take by default.

    A module of the user's may set others when it is imported, after this.
    """
    keras.config.set_floatx("float64" if config.dtype == "float64" else "float32")
    keras.config.set_dtype_policy(config.dtype)


def follow_floatx() -> None:
    """Makes layers double precision if a module has set Keras's floatx to it.

    Keras itself does so as long as no other default has been set, as ours has.
    """
    is_default = keras.config.dtype_policy().name == ModelConfig().dtype
    if is_default and keras.config.floatx() == "float64":
        keras.config.set_dtype_policy("float64")


def check_precision(config: ModelConfig) -> None:
    """Refuses a module's types that contradict those of a flag.

    Raises:
      UsageError: They do.
    """
    policy = keras.config.dtype_policy().name
    if config.is_custom and policy != config.dtype != ModelConfig().dtype:
        raise UsageError(
            f"--dtype={config.dtype} contradicts {policy}, which the module of "
            f"--model={config.model} sets for keras.config.dtype_policy: leave one of "
            "them out."
        )


def _check_trainable(model: keras.Model, config: Config) -> None:
    if not model.trainable_variables:
        raise UsageError(
            f"--model={config.model.model} has no weights to train: none of its layers "
            f"has weights with trainable=True ({len(model.variables)} variables are "
            "frozen); set it on the layers to train, before the model is compiled."
        )


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Turns an error of a model into one line."""
    try:
        yield
    except ValueError as error:
        raise UsageError(one_line(error)) from error
