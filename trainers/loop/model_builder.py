"""Construction of the model of a run, with all variables that train it."""

import contextlib
from collections.abc import Iterator

import keras

from models.base import Build, TrainableModel
from models.objective import Objective
from strategies.base import Strategy
from strategies.common.errors import UsageError
from strategies.common.text import one_line
from trainers.config.config import Config
from trainers.inputs.sources import Data
from trainers.loop import checks
from trainers.loop.parts import ModelParts, RateByStep
from trainers.loop.precision import check_precision, set_precision
from trainers.model.ballast import add_ballast
from trainers.model.gradient_accumulation import check_accumulable
from trainers.model.layer_state import LayerState
from trainers.model.layer_switches import disable_layers, perturb_weights
from trainers.model.optimizers.build import (
    adopt_optimizer,
    build_optimizer,
    update_where_variables_are,
)
from trainers.model.optimizers.learning_rate import (
    LearningRate,
    LearningRateScale,
    num_updates,
    rate_of,
)
from trainers.model.optimizers.loss_scale import LossScale, needs_loss_scale
from trainers.model.overlapping_layer_state import OverlappingLayerState
from trainers.model.update import make_step_counter
from trainers.pipeline_parallel.build import build_pipeline
from trainers.run_dir.export import load_initial_weights
from trainers.user_code.own_step.objective import OwnStep


def build_model_parts(
    config: Config,
    strategy: Strategy,
    data: Data,
    spec: TrainableModel,
    train_steps: int,
) -> ModelParts:
    """Builds the model and all variables in the strategy's scope, for some updates.

    Raises:
      UsageError: The model does not fit the settings, the data or the strategy.
    """
    model, objective = _with_objective(config, strategy, data, spec)
    pipeline = None
    with strategy.scope():
        disable_layers(model, config.model.disable_layers or ())
        scale = LearningRateScale(may_change=config.guard.rolls_back)
        # Before the optimizer is built: its variables must be on the devices of the
        # stages.
        if config.strategy.traits.is_model_parallel:
            pipeline = build_pipeline(model, config, strategy.devices, data)
        compiled = spec.compiled_optimizer
        checks.check_compiled_optimizer(compiled, strategy)
        optimizer, learning_rate = _make_optimizer(
            config, compiled, model, objective, train_steps, scale
        )
        if config.strategy.shard_optimizer_state:
            keeps_rows = compiled is not None and config.optimizer.sparse_gradients
            checks.check_shardable(optimizer, model, objective, keeps_rows)
        loss_scale = None
        # Updates in turn cannot be repeated with another scale.
        is_repeatable = not isinstance(objective, OwnStep) or objective.num_passes == 1
        if needs_loss_scale(model) and is_repeatable:
            loss_scale = LossScale(model)
        if pipeline is not None:
            update_where_variables_are(optimizer)
        step = make_step_counter()
    num_microbatches = config.strategy.gradient_accumulation_steps
    check_accumulable(model, num_microbatches)
    num_shards = config.strategy.num_shards(strategy.num_replicas)
    checks.check_overwritten(model, num_shards * num_microbatches)
    # With overlapping updates, another may change the state of a step under way.
    state_kind = LayerState if config.strategy.is_synchronous else OverlappingLayerState
    return ModelParts(
        model=model,
        pipeline=pipeline,
        objective=objective,
        optimizer=optimizer,
        has_compiled_optimizer=compiled is not None,
        replaced_optimizer=None if compiled else getattr(model, "optimizer", None),
        learning_rate=learning_rate,
        learning_rate_scale=scale,
        layer_state=state_kind(model),
        step=step,
        loss_scale=loss_scale,
    )


def _make_optimizer(
    config: Config,
    compiled: keras.optimizers.Optimizer | None,
    model: keras.Model,
    objective: Objective,
    train_steps: int,
    scale: LearningRateScale,
) -> tuple[keras.optimizers.Optimizer, RateByStep]:
    """Returns the optimizer with its variables, and its learning rate."""
    if compiled is not None:
        rate_by_step = rate_of_compiled(compiled, objective, scale)
        adopt_optimizer(compiled, model, scale.times)
        return compiled, rate_by_step
    size = config.length.global_batch_size
    is_number = config.optimizer.is_constant and not config.guard.rolls_back
    if config.model.callbacks is not None and is_number:
        # Keras lets callbacks set a number, and refuses where a schedule decides.
        rate = config.optimizer.peak_learning_rate(size)
        optimizer = build_optimizer(config.optimizer, rate, model)
        return optimizer, lambda step: rate_of(optimizer, step)
    learning_rate = LearningRate(config.optimizer, train_steps, size, scale)
    return build_optimizer(config.optimizer, learning_rate, model), learning_rate


def rate_of_compiled(
    optimizer: keras.optimizers.Optimizer,
    objective: Objective,
    scale: LearningRateScale,
) -> RateByStep:
    """Returns the rate of a compiled optimizer by number of updates of a training."""
    # An earlier `fit` has applied them.
    num_before = num_updates(optimizer)
    calls = objective.calls_of_first if isinstance(objective, OwnStep) else 1
    return lambda step: float(
        scale.times(rate_of(optimizer, num_before + calls * step))
    )


def _with_objective(
    config: Config, strategy: Strategy, data: Data, spec: TrainableModel
) -> tuple[keras.Model, Objective]:
    """Builds the model with its initial weights, and its loss and metrics."""
    if not config.model.is_custom:
        set_precision(config.model)
    if config.model.script is None:
        keras.utils.set_random_seed(config.run.seed)
    with strategy.scope(), _refused():
        model = build_model(config, data, spec.build)
        if config.model.initial_weights is not None:
            load_initial_weights(config.model.initial_weights, model)
        if config.model.perturb_initial_weights:
            perturb_weights(model)
        checks.check_trainable(model, config)
        check_precision(config)
    # Outside of the scope, because Keras makes variables of metrics.
    with _refused():
        return model, spec.objective(model, config.optimizer.label_smoothing)


def build_model(config: Config, data: Data, build: Build) -> keras.Model:
    """Builds the model, with ballast if the configuration has some."""
    model = build(data, config.model)
    if config.model.ballast:
        # One weight for each parameter server, so that every server holds a part.
        add_ballast(model, config.strategy.num_ps or 1)
    return model


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Turns an error of a model into one line."""
    try:
        yield
    except ValueError as error:
        raise UsageError(one_line(error)) from error
