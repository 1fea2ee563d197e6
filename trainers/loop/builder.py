"""Construction of a run's parts from its configuration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import models
from models.base import Objective, TrainableModel
from models.embedding import ShardedEmbedding
from strategies import registry
from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.fields import LARGEST_WHOLE_NUMBER
from strategies.common.private_apis import flat_layers
from strategies.common.text import one_line
from strategies.common.types import Batch, GlobalBatches, LoopFunction, ReplicaFunction
from strategies.inner_loop.reduction import bytes_of
from trainers import inputs
from trainers.config.config import Config
from trainers.config.model import ModelConfig
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Data
from trainers.inputs.tfrecord.stream import RecordStream
from trainers.loop.evaluation import Evaluation
from trainers.model.gradient_accumulation import Accumulation, check_accumulable
from trainers.model.gradient_noise_scale import WithStatistics
from trainers.model.layer_state import LayerState, layer_state_of, sums_over_replicas
from trainers.model.layer_switches import disable_layers
from trainers.model.optimizers import (
    LearningRate,
    LearningRateScale,
    LossScale,
    build_optimizer,
    needs_loss_scale,
    update_where_variables_are,
)
from trainers.model.padding_weights import WithBallast
from trainers.model.replica_invariant_dropout import ReplayableDropout
from trainers.model.sparse_gradients import embeddings_of
from trainers.model.train_step import EvalStep, TrainStep
from trainers.model.update import ModelUpdate
from trainers.model.xla_errors import compile_error
from trainers.pipeline_parallel.build import Pipeline, build_pipeline
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code.checks import check_numbers
from trainers.user_code.model import custom_model

_DEFAULT_TRAIN_STEPS = 1000
# By default a run is evaluated at least so often.
_FEWEST_EVALUATIONS = 10
# By default not more often, unless the run is short: steps of a tenth of a millisecond
# would otherwise wait most of the time for evaluations, which take five each.
_FEWEST_STEPS_BETWEEN_EVALUATIONS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """Parts of a run, ready to train or evaluate.

    Attributes:
      config: what it was made from.
      strategy: holds the devices.
      data: training and held-out examples.
      order: which examples each step sees.
      train_steps: updates at the end of the run.
      model: with new weights.
      objective: The loss and the metrics.
      optimizer: with new variables.
      learning_rate: from the number of applied updates.
      learning_rate_scale: what it is multiplied with.
      layer_state: what besides weights training changes.
      step: int64 scalar, the number of applied updates.
      loop_function: Inner training loop, not traced yet.
      evaluation: Evaluation on the held-out examples, not traced yet.
      pipeline: Stages of the model; None for a model that is not partitioned.
      rebuild: Function that builds the model again, outside of the strategy.
    """

    config: Config
    strategy: Strategy
    data: Data
    order: Order
    train_steps: int
    model: keras.Model
    objective: Objective
    optimizer: keras.optimizers.Optimizer
    learning_rate: LearningRate
    learning_rate_scale: LearningRateScale
    layer_state: LayerState
    step: tf.Variable
    loop_function: LoopFunction
    evaluation: Evaluation
    pipeline: Pipeline | None
    rebuild: Callable[[], keras.Model]

    @property
    def eval_every_steps(self) -> int | None:
        """Steps between evaluations; None for only at the end.

        It depends on no clock, so that all processes evaluate at the same steps, and
        so does a run that is continued.
        """
        given = self.config.report.eval_every_steps
        if given != 0:
            return given
        per_epoch = self.order.steps_per_epoch
        whole_epochs = per_epoch * -(-_FEWEST_STEPS_BETWEEN_EVALUATIONS // per_epoch)
        return max(min(whole_epochs, self.train_steps // _FEWEST_EVALUATIONS), 1)

    def batches(self, first_step: int) -> GlobalBatches:
        """Returns the training batches from a step to the end of the run.

        Args:
          first_step: Number of updates already applied.
        """
        train = self.data.train
        if isinstance(train, RecordStream):
            return train.batches(self.order, first_step, self.train_steps)
        return SourceBatches(
            source=train,
            order=self.order,
            first_step=first_step,
            last_step=self.train_steps,
            augment=self.data.augment,
        )

    def state_variables(self) -> list[tf.Variable]:
        """Returns the variables that a resumed run needs.

        These are the variables of a checkpoint and the factor of the learning rate.
        """
        tracked = [*self.model.weights, *self.optimizer.variables]
        return [
            *(variable.value for variable in tracked),
            self.step,
            self.learning_rate_scale.variable,
            *self.strategy.replica_state(),
        ]

    def embeddings(self) -> list[ShardedEmbedding]:
        """Returns the layers that use only a few rows of their table in a step."""
        return embeddings_of(self.model)

    def bytes_to_share(self) -> int:
        """Returns the bytes that a replica, or a stage, sends to others in a step."""
        if self.pipeline is not None:
            size = self.config.length.global_batch_size
            return self.pipeline.border_bytes(size)
        return self.gradient_bytes()

    def gradient_bytes(self) -> int:
        """Returns the maximum bytes of one replica's gradients."""
        size = bytes_of([v.value for v in self.model.trainable_variables])
        if not self.config.optimizer.sparse_gradients:
            return size
        shares = self.config.strategy.num_shards(self.strategy.num_replicas)
        # Rounded up: the largest shard of a global batch.
        num_examples = -(-self.config.length.global_batch_size // shares)
        for layer in self.embeddings():
            size -= bytes_of([v.value for v in layer.shards])
            # Upper bound: no two examples use the same row.
            size += layer.most_gradient_bytes(num_examples)
        return size


def create_strategy(config: Config, cluster: Cluster) -> Strategy:
    """Creates the strategy: claims devices and waits for the cluster's other tasks.

    Args:
      config: Configuration of the run.
      cluster: This process's place in the cluster.

    Raises:
      UsageError: This machine or cluster cannot run the strategy.
    """
    return registry.load(config.strategy.strategy).create(config.strategy, cluster)


def assemble(config: Config, strategy: Strategy) -> TrainingParts:
    """Opens the data and builds the model and the update. Writes no file.

    Args:
      config: Configuration of the run.
      strategy: Strategy from `create_strategy`.

    Raises:
      UsageError: The settings, the strategy, the data and the model do not fit
        together.
    """
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
    config: Config, strategy: Strategy, data: Data, spec: TrainableModel
) -> TrainingParts:
    """Assembles a run from a given strategy, data set and model.

    Args:
      config: Configuration of the run.
      strategy: Strategy from `create_strategy`.
      data: Training and evaluation examples.
      spec: Description of the model.

    Raises:
      UsageError: The settings, the strategy, the data and the model do not fit
        together.
    """
    _check_batch_size(config, strategy, data)
    _check_files(strategy, data)
    if config.model.ballast:
        # One weight for each parameter server, so that every server holds a part of the
        # ballast.
        spec = WithBallast(spec=spec, num_weights=config.strategy.num_ps or 1)
    order = Order(
        num_examples=data.train.num_examples,
        global_batch_size=config.length.global_batch_size,
        seed=config.run.seed,
        drop_last_batch=config.drops_last_batch,
    )
    # Epochs can only be converted to steps once the number of examples is known.
    train_steps = _train_steps(config, order)
    learner = build_learner(config, strategy, data, spec, train_steps)
    train_step = learner.train_step(config, strategy)
    # With one micro-batch, `Accumulation` only calls the step.
    step: ReplicaFunction = Accumulation(
        train_step, config.strategy.gradient_accumulation_steps
    )
    if config.report.replica_statistics:
        _check_dense(learner.model)
        num_shards = config.strategy.num_shards(strategy.num_replicas)
        step = WithStatistics(step, num_shards)
    assembly = TrainingParts(
        config=config,
        strategy=strategy,
        data=data,
        order=order,
        train_steps=train_steps,
        model=learner.model,
        objective=learner.objective,
        optimizer=learner.optimizer,
        learning_rate=learner.learning_rate,
        learning_rate_scale=learner.learning_rate_scale,
        layer_state=learner.layer_state,
        step=learner.step,
        loop_function=strategy.compile(step, learner.update(config)),
        evaluation=Evaluation(
            strategy,
            learner.eval_step(),
            data.evaluation,
            config.report.eval_global_batch_size,
        ),
        pipeline=learner.pipeline,
        # Called later for exports, outside of the strategy's scope.
        rebuild=lambda: spec.build(data, config.model),
    )
    if config.model.jit_compile:
        _check_compilable(assembly, train_step)
    return assembly


def _check_dense(model: keras.Model) -> None:
    if embeddings_of(model):
        raise UsageError(
            "--set=report.replica_statistics=true does not fit a table of embeddings, "
            "of whose "
            "gradient each replica has other rows: leave it out, or choose another "
            "--model."
        )


def _check_compilable(assembly: TrainingParts, step: TrainStep | PipelineStep) -> None:
    """Checks that XLA can compile the step.

    XLA reports an error in a pipeline stage only when the stage runs.
    """
    check_layers(assembly.model)
    if isinstance(step, TrainStep):
        shares = assembly.batches(0).dataset(0, assembly.strategy.num_replicas)
        check_step(step, next(iter(shares)))


def _check_batch_size(config: Config, strategy: Strategy, data: Data) -> None:
    """Checks the batch size against the actual number of replicas.

    The configuration can only check a number of replicas that a flag gives.
    """
    size = config.length.global_batch_size
    replicas = config.strategy.num_shards(strategy.num_replicas)
    steps = config.strategy.gradient_accumulation_steps
    if size < replicas * steps:
        parts = f" x {steps} micro-batches" if steps > 1 else ""
        raise UsageError(
            f"--global_batch_size={size} is smaller than the {replicas} replicas"
            f"{parts}: each needs an example; raise it, or lower --num_replicas or "
            "--gradient_accumulation_steps."
        )
    if config.drops_last_batch and size > data.train.num_examples:
        flag = (
            "--set=length.drop_last_batch=true"
            if config.length.drop_last_batch
            else "--sharding"
        )
        raise UsageError(
            f"--global_batch_size={size} is more than the {data.train.num_examples:,} "
            f"training examples, so that {flag} leaves no batch: lower it, "
            f"or leave {flag} out."
        )


def _check_files(strategy: Strategy, data: Data) -> None:
    """Checks that there are enough files for file sharding: one for each process."""
    stream = data.train
    if not isinstance(stream, RecordStream) or not stream.by_file:
        return
    # The replicas of one process read the same stream.
    readers = strategy.num_replicas if strategy.traits.multi_process else 1
    if len(stream.files) < readers:
        raise UsageError(
            f"--sharding=file gives each of {readers} replicas files of its own, and "
            f"--data_path has {len(stream.files)}: split them, or use "
            "--sharding=example."
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
    return config.length.train_steps or _DEFAULT_TRAIN_STEPS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Model, optimizer and their state in a strategy's scope.

    Attributes:
      model: Model with initial weights.
      pipeline: Stages of the model; None for a model that is not partitioned.
      objective: Loss and metrics of the model.
      optimizer: Optimizer with initial variables.
      learning_rate: Learning rate by number of applied updates.
      learning_rate_scale: Factor of the learning rate.
      layer_state: Non-trainable variables that training changes.
      step: int64 scalar, the number of applied updates.
      loss_scale: Factor of the loss that is differentiated; None for one.
    """

    model: keras.Model
    pipeline: Pipeline | None
    objective: Objective
    optimizer: keras.optimizers.Optimizer
    learning_rate: LearningRate
    learning_rate_scale: LearningRateScale
    layer_state: LayerState
    step: tf.Variable
    loss_scale: LossScale | None

    def train_step(
        self, config: Config, strategy: Strategy
    ) -> TrainStep | PipelineStep:
        """Returns the training step of one replica.

        Args:
          config: Configuration of the run.
          strategy: Strategy of the run.
        """
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
        sums_gradients = config.strategy.gradient_reduction == "sum"
        return TrainStep(
            self.model,
            *parts,
            **settings,
            # Where gradients are summed, the gradient is num_replicas times the mean
            # over the global batch.
            gradient_scale=strategy.num_replicas if sums_gradients else 1,
            differentiate=config.strategy.averaged != "losses",
            read=strategy.read,
        )

    def update(self, config: Config) -> ModelUpdate:
        """Returns the weight update, which follows the all-reduce.

        Args:
          config: Configuration of the run.
        """
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
        """Returns the evaluation step of one replica."""
        model = self.pipeline.staged if self.pipeline else self.model
        return EvalStep(model, self.objective, self.model.trainable_variables)


def build_learner(
    config: Config,
    strategy: Strategy,
    data: Data,
    spec: TrainableModel,
    train_steps: int,
) -> ModelParts:
    """Builds the model and all variables in the strategy's scope.

    Args:
      config: Configuration of the run.
      strategy: Strategy of the run.
      data: Training and evaluation examples.
      spec: Description of the model.
      train_steps: Number of applied updates at the end of the run.

    Raises:
      UsageError: The model does not fit the settings, the data or the strategy.
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
        disable_layers(model, config.model.disable_layers or ())
        learning_rate_scale = LearningRateScale(may_change=config.guard.rolls_back)
        learning_rate = LearningRate(
            config.optimizer,
            train_steps,
            config.length.global_batch_size,
            learning_rate_scale,
        )
        # Before the optimizer is built: its variables must be on the devices of the
        # stages.
        if config.strategy.traits.is_model_parallel:
            pipeline = build_pipeline(model, config, strategy.devices, data.train)
        optimizer = build_optimizer(config.optimizer, learning_rate, model)
        loss_scale = LossScale(optimizer) if needs_loss_scale(model) else None
        if pipeline is not None:
            update_where_variables_are(optimizer)
        step = _make_step_variable()
    check_accumulable(model, config.strategy.gradient_accumulation_steps)
    return ModelParts(
        model=model,
        pipeline=pipeline,
        objective=objective,
        optimizer=optimizer,
        learning_rate=learning_rate,
        learning_rate_scale=learning_rate_scale,
        layer_state=layer_state_of(
            model, updates_overlap=not config.strategy.is_synchronous
        ),
        step=step,
        loss_scale=loss_scale,
    )


def _replayable_dropout(model: keras.Model, config: Config) -> ReplayableDropout | None:
    if not config.model.replayable_dropout:
        return None
    # Disabled dropout draws no numbers that could be replayed.
    if "dropout" in (config.model.disable_layers or ()):
        return None
    return ReplayableDropout(model, config.run.seed)


def _make_step_variable() -> tf.Variable:
    """Returns the counter of applied updates."""
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="applied_updates",
        # Of mirrored variables only the first replica counts, not every replica.
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


def check_layers(model: keras.Model) -> None:
    """Rejects layers that XLA is known not to compile.

    Args:
      model: Model with all its layers built.

    Raises:
      UsageError: The model has such a layer.
    """
    for layer in flat_layers(model):
        if isinstance(layer, ShardedEmbedding):
            reason = "XLA would need its whole table in every step, not the rows in use"
        elif sums_over_replicas(layer):
            reason = "its sum over replicas cannot be compiled"
        else:
            continue
        raise UsageError(
            f"--jit_compile does not fit layer {layer.name!r}: {reason}; leave "
            "--jit_compile out."
        )


def check_step(step: TrainStep, batch: Batch) -> None:
    """Compiles a step, without running it.

    Args:
      step: The training step of one replica.
      batch: The shard of one replica.

    Raises:
      UsageError: XLA cannot compile the step.
    """
    try:
        step.compile_for(batch)
    except Exception as error:
        refusal = compile_error(str(error))
        if refusal is None:
            raise
        raise refusal from error
