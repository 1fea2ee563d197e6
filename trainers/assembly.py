"""Puts a run together from its configuration: strategy, data, model, update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

import models
from models.base import Objective, TrainableModel
from models.embedding import ShardedEmbedding
from strategies import discovery
from strategies.base import GlobalBatches, ReplicaStep, RunSteps, Strategy
from strategies.cluster import Cluster
from strategies.settings import LARGEST_WHOLE_NUMBER, UsageError
from strategies.shares import bytes_of
from trainers import inputs
from trainers.accumulation import Accumulation
from trainers.ballast import WithBallast
from trainers.compilable import check_layers, check_step
from trainers.config import Config
from trainers.custom.checks import check_numbers
from trainers.custom.model import custom_model
from trainers.evaluation import Evaluation
from trainers.inputs.data import Data
from trainers.inputs.order import Order
from trainers.inputs.record_stream import RecordStream
from trainers.inputs.source_batches import SourceBatches
from trainers.layer_state import LayerState
from trainers.learner import build_learner, follow_floatx, set_precision
from trainers.optimizers import LearningRate, RateFactor
from trainers.pipeline.build import Pipeline
from trainers.pipeline.step import PipelineStep
from trainers.replica_statistics import WithStatistics
from trainers.sparse import embeddings_of
from trainers.step import TrainStep

_DEFAULT_TRAIN_STEPS = 1000
# By default a run is evaluated at least so often.
_FEWEST_EVALUATIONS = 10
# By default not more often, unless the run is short: steps of a tenth of a millisecond
# would otherwise wait most of the time for evaluations, which take five each.
_FEWEST_STEPS_BETWEEN_EVALUATIONS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assembly:
    """The parts of a run, ready to train or evaluate.

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
      rate_factor: what it is multiplied with.
      layer_state: what besides weights training changes.
      step: int64 scalar, the number of applied updates.
      run_steps: the inner training loop, not traced yet.
      evaluation: over the held-out examples, not traced yet.
      pipeline: the model in stages; None where it is whole.
      rebuild: makes the model once more, outside of the strategy.
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
    rate_factor: RateFactor
    layer_state: LayerState
    step: tf.Variable
    run_steps: RunSteps
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
        """Training batches from a step to the end of the run."""
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
        """What a run goes on from: all that a checkpoint has, and the rate's factor."""
        tracked = [*self.model.weights, *self.optimizer.variables]
        return [
            *(variable.value for variable in tracked),
            self.step,
            self.rate_factor.variable,
            *self.strategy.replica_state(),
        ]

    def embeddings(self) -> list[ShardedEmbedding]:
        """Layers of which a step uses only a few rows."""
        return embeddings_of(self.model)

    def bytes_to_share(self) -> int:
        """Size of what one replica, or one stage, computes for others in a step."""
        if self.pipeline is not None:
            size = self.config.length.global_batch_size
            return self.pipeline.border_bytes(size)
        return self.gradient_bytes()

    def gradient_bytes(self) -> int:
        """Size of one replica's gradient of all trainable variables, at most.

        Rows of an embedding count as if no two examples had used the same.
        """
        size = bytes_of([v.value for v in self.model.trainable_variables])
        if not self.config.optimizer.sparse_gradients:
            return size
        shares = self.config.strategy.num_shares(self.strategy.num_replicas)
        num_examples = -(-self.config.length.global_batch_size // shares)
        for layer in self.embeddings():
            size -= bytes_of([v.value for v in layer.shards])
            size += layer.most_gradient_bytes(num_examples)
        return size


def create_strategy(config: Config, cluster: Cluster) -> Strategy:
    """Takes devices, and waits for the other tasks of a cluster.

    Raises:
      UsageError: this machine or cluster cannot run the strategy.
    """
    return discovery.load(config.strategy.strategy).create(config.strategy, cluster)


def assemble(config: Config, strategy: Strategy) -> Assembly:
    """Opens data, builds model and update. Writes no file.

    Raises:
      UsageError: the parts do not fit each other, the strategy or the data.
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
) -> Assembly:
    """The same for a strategy, data and a model that are at hand already."""
    _check_batch_size(config, strategy, data)
    _check_files(strategy, data)
    if config.model.ballast:
        spec = WithBallast(spec=spec, num_weights=config.strategy.num_ps or 1)
    order = Order(
        num_examples=data.train.num_examples,
        global_batch_size=config.length.global_batch_size,
        seed=config.run.seed,
        drop_last_batch=config.drops_last_batch,
    )
    train_steps = _train_steps(config, order)
    learner = build_learner(config, strategy, data, spec, train_steps)
    train_step = learner.train_step(config, strategy)
    step: ReplicaStep = Accumulation(
        train_step, config.strategy.gradient_accumulation_steps
    )
    if config.report.replica_statistics:
        _check_dense(learner.model)
        num_shares = config.strategy.num_shares(strategy.num_replicas)
        step = WithStatistics(step, num_shares)
    assembly = Assembly(
        config=config,
        strategy=strategy,
        data=data,
        order=order,
        train_steps=train_steps,
        model=learner.model,
        objective=learner.objective,
        optimizer=learner.optimizer,
        learning_rate=learner.learning_rate,
        rate_factor=learner.rate_factor,
        layer_state=learner.layer_state,
        step=learner.step,
        run_steps=strategy.compile(step, learner.update(config)),
        evaluation=Evaluation(
            strategy,
            learner.eval_step(),
            data.evaluation,
            config.report.eval_global_batch_size,
        ),
        pipeline=learner.pipeline,
        rebuild=lambda: spec.build(data, config.model),
    )
    if config.model.jit_compile:
        _check_compilable(assembly, train_step)
    return assembly


def _check_dense(model: keras.Model) -> None:
    if embeddings_of(model):
        raise UsageError(
            "--replica_statistics does not fit a table of embeddings, of whose "
            "gradient each replica has other rows: leave it out, or choose another "
            "--model."
        )


def _check_compilable(assembly: Assembly, step: TrainStep | PipelineStep) -> None:
    """Of a model in stages XLA tells when it runs, which is later."""
    check_layers(assembly.model)
    if isinstance(step, TrainStep):
        shares = assembly.batches(0).dataset(0, assembly.strategy.num_replicas)
        check_step(step, next(iter(shares)), assembly.config)


def _check_batch_size(config: Config, strategy: Strategy, data: Data) -> None:
    """Config checks a number of replicas that was given; here it is the real one."""
    size = config.length.global_batch_size
    replicas = config.strategy.num_shares(strategy.num_replicas)
    steps = config.strategy.gradient_accumulation_steps
    if size < replicas * steps:
        parts = f" x {steps} micro-batches" if steps > 1 else ""
        raise UsageError(
            f"--global_batch_size={size} is smaller than the {replicas} replicas"
            f"{parts}: each needs an example; raise it, or lower --num_replicas or "
            "--gradient_accumulation_steps."
        )
    if config.drops_last_batch and size > data.train.num_examples:
        flag = "--drop_last_batch" if config.length.drop_last_batch else "--sharding"
        raise UsageError(
            f"--global_batch_size={size} is more than the {data.train.num_examples:,} "
            f"training examples, so that {flag} leaves no batch: lower it, "
            f"or leave {flag} out."
        )


def _check_files(strategy: Strategy, data: Data) -> None:
    """Every process of several reads files of its own, if the stream is so."""
    stream = data.train
    if not isinstance(stream, RecordStream) or not stream.by_file:
        return
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
