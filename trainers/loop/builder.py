"""Construction of a run's parts from its configuration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import keras

import models
from models.base import Build, TrainableModel
from models.objective import Objective
from strategies import registry
from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.fields import LARGEST_WHOLE_NUMBER
from strategies.common.text import one_line
from trainers import inputs
from trainers.config.config import Config
from trainers.config.run import DEFAULT_TRAIN_STEPS
from trainers.inputs.any_batches import batches_of
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Data
from trainers.loop import checks
from trainers.loop.compilation import Scope, compilation_of
from trainers.loop.evaluation import Evaluation
from trainers.loop.parts import (
    ONLY_PHASE,
    LoopParts,
    ModelParts,
    Phase,
    RateByStep,
    TrainingParts,
)
from trainers.loop.precision import check_precision, follow_floatx, set_precision
from trainers.loop.replica_step import replica_step, shared_tables
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
from trainers.model.padding_weights import add_ballast
from trainers.model.update import make_step_counter
from trainers.pipeline_parallel.build import build_pipeline
from trainers.run_dir.export import load_initial_weights
from trainers.user_code.checks import check_numbers
from trainers.user_code.model import custom_model
from trainers.user_code.own_step.objective import OwnStep


def create_strategy(config: Config, cluster: Cluster) -> Strategy:
    """Creates the strategy: claims devices and waits for the cluster's other tasks.

    Raises:
      UsageError: This machine or cluster cannot run the strategy.
    """
    return registry.load(config.strategy.strategy).create(config.strategy, cluster)


def assemble(config: Config, strategy: Strategy) -> TrainingParts:
    """Opens the data and builds the model and the update. Writes no file.

    Raises:
      UsageError: The settings, the strategy, the data and the model do not fit
        together.
    """
    if config.model.script is not None:
        raise UsageError(
            f"--script={config.model.script} makes its own model and data: evaluate "
            "and export the model in the program, after its fit."
        )
    # A module may make layers when it is imported, or set their types.
    set_precision(config.model)
    keras.utils.set_random_seed(config.run.seed)
    data = inputs.load(config.data)
    if config.model.is_custom:
        spec = custom_model(config.model, data)
        follow_floatx()
        return assemble_parts(config, strategy, data, spec)
    if config.data.is_custom:
        check_numbers(data)
    return assemble_parts(config, strategy, data, models.load(config.model.model))


def assemble_parts(
    config: Config,
    strategy: Strategy,
    data: Data,
    spec: TrainableModel,
    phase: Phase = ONLY_PHASE,
) -> TrainingParts:
    """Assembles a run from a given strategy, data set and model.

    Raises:
      UsageError: The settings, the strategy, the data and the model do not fit
        together.
    """
    order = _checked_order(config, strategy, data, phase)
    # Epochs can only be converted to steps once the number of examples is known.
    train_steps = _train_steps(config, order)
    model_parts = build_model_parts(config, strategy, data, spec, train_steps)
    first, after = phase.first_step, phase.first_step + 1
    batches = batches_of(data.train, order, first, after, augment=data.augment)
    model, objective = model_parts.model, model_parts.objective
    compilation = compilation_of(
        config, strategy, model, objective, batches.largest_span
    )
    is_loop, compiled_config = compilation.scope is Scope.LOOP, config
    if is_loop:
        # XLA has neither gradients of single rows nor a clock.
        compiled_config = config.replace(sparse_gradients=False, step_phases=False)
    train_step = model_parts.train_step(
        compiled_config, strategy, jit_compile=compilation.scope is Scope.REPLICA
    )
    compile_with = strategy.compile_loop if is_loop else strategy.compile
    loops = LoopParts(
        **vars(model_parts),
        strategy=strategy,
        compilation=compilation,
        loop_function=compile_with(
            replica_step(train_step, model_parts, config, strategy),
            model_parts.update(
                compiled_config,
                shared_tables(train_step, model_parts, compiled_config, strategy, data),
            ),
        ),
        evaluation_loop=strategy.compile(model_parts.eval_step(), update=None),
    )
    parts = _with_data(loops, config, data, order, spec.build, phase)
    if compilation.scope is Scope.REPLICA:
        checks.check_compilable(parts, train_step)
    return parts


def assemble_again(
    loops: LoopParts, config: Config, data: Data, build: Build, phase: Phase
) -> TrainingParts:
    """Assembles a further training of a model, with the loops of an earlier one.

    The model keeps its compiled optimizer.

    Args:
      loops: Parts of the earlier training, whose variables have the present values.
      config: Configuration, equal apart from the length.
      data: Data of the same shapes and types.
      build: Function that builds the model.
      phase: Number of the training, and its first step.

    Raises:
      UsageError: The settings, the strategy and the data do not fit together.
    """
    order = _checked_order(config, loops.strategy, data, phase)
    scale = loops.learning_rate_scale
    rate = _rate_of_compiled(loops.optimizer, loops.objective, scale)
    loops = dataclasses.replace(loops, learning_rate=rate)
    return _with_data(loops, config, data, order, build, phase)


def _with_data(
    loops: LoopParts,
    config: Config,
    data: Data,
    order: Order,
    build: Build,
    phase: Phase,
) -> TrainingParts:
    # A checkpoint that is restored later overwrites it.
    loops.step.assign(phase.first_step)
    return TrainingParts(
        **vars(loops),
        config=config,
        data=data,
        order=order,
        train_steps=phase.first_step + _train_steps(config, order),
        evaluation=Evaluation(
            loops.strategy,
            loops.evaluation_loop,
            data.evaluation,
            config.report.eval_global_batch_size,
            loops.logs,
        ),
        # Called later for exports, outside of the strategy's scope.
        rebuild=lambda: _build(config, data, build),
        phase=phase.number,
    )


def _checked_order(
    config: Config, strategy: Strategy, data: Data, phase: Phase
) -> Order:
    checks.check_batch_size(config, strategy, data)
    checks.check_files(strategy, data)
    return Order(
        num_examples=data.train.num_examples,
        global_batch_size=config.length.global_batch_size,
        seed=config.run.seed if data.is_shuffled else None,
        drop_last_batch=config.drops_last_batch,
        first_step=phase.first_step,
        first_example=phase.first_example,
    )


def _train_steps(config: Config, order: Order) -> int:
    epochs = config.length.epochs
    if epochs is not None:
        steps = epochs * order.steps_per_epoch
        if steps > LARGEST_WHOLE_NUMBER:
            raise UsageError(
                f"--epochs={epochs} of {order.steps_per_epoch:,} steps each are more "
                f"steps than can be counted, {LARGEST_WHOLE_NUMBER}: lower it."
            )
        return steps
    return config.length.train_steps or DEFAULT_TRAIN_STEPS


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
    model, objective = _build_model(config, strategy, data, spec)
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
        rate_by_step = _rate_of_compiled(compiled, objective, scale)
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


def _rate_of_compiled(
    optimizer: keras.optimizers.Optimizer,
    objective: Objective,
    scale: LearningRateScale,
) -> RateByStep:
    # An earlier `fit` has applied them.
    num_before = num_updates(optimizer)
    calls = objective.calls_of_first if isinstance(objective, OwnStep) else 1
    return lambda step: float(
        scale.times(rate_of(optimizer, num_before + calls * step))
    )


def _build_model(
    config: Config, strategy: Strategy, data: Data, spec: TrainableModel
) -> tuple[keras.Model, Objective]:
    """Builds the model with its initial weights, and its loss and metrics."""
    if not config.model.is_custom:
        set_precision(config.model)
    if config.model.script is None:
        keras.utils.set_random_seed(config.run.seed)
    with strategy.scope(), _refused():
        model = _build(config, data, spec.build)
        if config.model.initial_weights is not None:
            load_initial_weights(config.model.initial_weights, model)
        if config.model.perturb_initial_weights:
            perturb_weights(model)
        checks.check_trainable(model, config)
        check_precision(config)
    # Outside of the scope, because Keras makes variables of metrics.
    with _refused():
        return model, spec.objective(model, config.optimizer.label_smoothing)


def _build(config: Config, data: Data, build: Build) -> keras.Model:
    """Builds the model, with ballast if it is wanted."""
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
