"""Construction of a run's parts from its configuration."""

import dataclasses

import keras

import models
from models.base import Build, TrainableModel
from strategies import registry
from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.fields import LARGEST_WHOLE_NUMBER
from strategies.common.types import SpanShape
from trainers import inputs
from trainers.config.config import Config
from trainers.config.run import DEFAULT_TRAIN_STEPS
from trainers.inputs.batches import batches_of
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Data
from trainers.loop import checks
from trainers.loop.compilation import Scope, compilation_of
from trainers.loop.evaluation import Evaluation
from trainers.loop.model_builder import (
    build_model,
    build_model_parts,
    rate_of_compiled,
)
from trainers.loop.parts import ONLY_PHASE, LoopParts, Phase, TrainingParts
from trainers.loop.precision import follow_floatx, set_precision
from trainers.loop.replica_step import replica_step, shared_tables
from trainers.user_code.checks import check_numbers
from trainers.user_code.model import custom_model


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
    spec: TrainableModel
    if config.model.is_custom:
        spec = custom_model(config.model, data)
        follow_floatx()
    else:
        spec = models.load(config.model.model)
        if config.data.is_custom:
            check_numbers(data)
    parts = assemble_parts(config, strategy, data, spec)
    if config.model.callbacks is not None:
        # Callbacks look for the optimizer here, and checkpoints save it here.
        parts.model.optimizer = parts.optimizer
    return parts


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
    compilation = compilation_of(
        config,
        strategy,
        model_parts.model,
        model_parts.objective,
        _largest_span(data, order),
    )
    is_loop, compiled_config = compilation.scope is Scope.LOOP, config
    if is_loop:
        # XLA has neither gradients of single rows nor a clock.
        compiled_config = config.replace(sparse_gradients=False, step_phases=False)
    train_step = model_parts.train_step(
        compiled_config, strategy, jit_compile=compilation.scope is Scope.REPLICA
    )
    step = replica_step(train_step, model_parts, config, strategy)
    merged = shared_tables(train_step, model_parts, compiled_config, strategy, data)
    compile_loop = strategy.compile_loop if is_loop else strategy.compile
    loops = LoopParts(
        **vars(model_parts),
        strategy=strategy,
        compilation=compilation,
        loop_function=compile_loop(step, model_parts.update(compiled_config, merged)),
        evaluation_loop=strategy.compile(model_parts.eval_step(), update=None),
    )
    parts = _with_data(loops, config, data, order, spec.build, phase)
    if compilation.scope is Scope.REPLICA:
        checks.check_compilable(parts, train_step)
    return parts


def _largest_span(data: Data, order: Order) -> SpanShape | None:
    """Returns the size that no span of training batches exceeds; None if unknown."""
    # It depends on the order alone: one step is enough to ask.
    first = order.first_step
    batches = batches_of(data.train, order, first, first + 1, augment=data.augment)
    return batches.largest_span


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
    rate = rate_of_compiled(loops.optimizer, loops.objective, scale)
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
        rebuild=lambda: build_model(config, data, build),
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
        seed=phase.order_seed(config.run.seed) if data.is_shuffled else None,
        drop_last_batch=config.drops_last_batch,
        first_step=phase.first_step,
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
