"""Parts of a run: the model with its state, and all that trains it."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.embedding import ShardedEmbedding
from models.objective import Objective, means_over_examples
from strategies.base import Strategy
from strategies.common.types import GlobalBatches, LoopFunction, ReplicaFunction
from strategies.inner_loop.reduction import bytes_of
from trainers.config.config import Config
from trainers.inputs.batches import batches_of
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Data
from trainers.loop.compilation import Compilation
from trainers.loop.evaluation import Evaluation
from trainers.model.eval_step import EvalStep
from trainers.model.layer_state import LayerState
from trainers.model.optimizers.learning_rate import LearningRateScale
from trainers.model.optimizers.loss_scale import LossScale
from trainers.model.optimizers.several import variables_of
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.model.sparse_gradients import embeddings_of
from trainers.model.train_step import StepSettings, TrainStep, with_totals
from trainers.model.update import ModelUpdate
from trainers.pipeline_parallel.build import Pipeline
from trainers.pipeline_parallel.step import PipelineStep
from trainers.run_dir.checkpoints import Checkpoints
from trainers.user_code.own_step.objective import OwnStep
from trainers.user_code.own_step.train_step import OwnTrainStep

# Least number of evaluations of a run by default.
_FEWEST_EVALUATIONS = 10
# Least number of steps from one evaluation to the next by default, unless the run is
# short: steps of 0.1 ms would otherwise wait most of the time for evaluations.
_FEWEST_STEPS_BETWEEN_EVALUATIONS = 20
# Odd, so that no two of 2**63 trainings have one seed, and large, so that they do not
# have those of runs with the next seeds: 2**63 divided by the golden ratio.
_SEED_STRIDE = 0x4F1BBCDCBFA53E0B

# Function from the number of updates of a training to the rate of the next one.
RateByStep = Callable[[int], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Model, optimizer and their state in a strategy's scope.

    Attributes:
      model: Model with initial weights.
      pipeline: Stages of the model; None for a model that is not partitioned.
      objective: Loss and metrics of the model.
      optimizer: Optimizer with initial variables.
      has_compiled_optimizer: True if the model was compiled with the optimizer.
      replaced_optimizer: Optimizer that the model was compiled with, if another one
        trains it; None otherwise.
      learning_rate: Learning rate by number of updates of this training.
      learning_rate_scale: Factor of the learning rate.
      layer_state: Non-trainable variables that training changes.
      step: int64 scalar, the number of applied updates.
      loss_scale: Factor of the loss that is differentiated; None for one.
    """

    model: keras.Model
    pipeline: Pipeline | None
    objective: Objective
    optimizer: keras.optimizers.Optimizer
    has_compiled_optimizer: bool
    replaced_optimizer: keras.optimizers.Optimizer | None
    learning_rate: RateByStep
    learning_rate_scale: LearningRateScale
    layer_state: LayerState
    step: tf.Variable
    loss_scale: LossScale | None

    def loss_scale_variables(self) -> Sequence[keras.Variable]:
        """Returns the variables of the loss's scale, if there is one."""
        return () if self.loss_scale is None else self.loss_scale.variables

    def saved_optimizer_variables(self) -> list[keras.Variable]:
        """Returns the variables of the optimizer and of the loss's scale."""
        return [*variables_of(self.optimizer), *self.loss_scale_variables()]

    def train_step(
        self, config: Config, strategy: Strategy, jit_compile: bool
    ) -> TrainStep | PipelineStep:
        """Returns the training step of one replica, which XLA may compile by itself."""
        replays = config.model.replayable_random_numbers
        settings = StepSettings(
            seed=config.run.seed,
            random_numbers=ReplayedRandomNumbers() if replays else None,
            sparse_gradients=config.optimizer.sparse_gradients,
            jit_compile=jit_compile,
            loss_scale=self.loss_scale,
        )
        parts = (self.objective, self.layer_state, settings)
        if self.pipeline is not None:
            return PipelineStep(self.model, self.pipeline, *parts)
        sums_gradients = config.strategy.gradient_reduction == "sum"
        is_divided = strategy.num_replicas > 1
        kind = OwnTrainStep if isinstance(self.objective, OwnStep) else TrainStep
        return kind(
            self.model,
            *parts,
            # With `gradient_reduction=sum` the gradient is num_replicas times the mean
            # over the global batch.
            gradient_scale=strategy.num_replicas if sums_gradients else 1,
            differentiate=config.strategy.averaged != "losses",
            read=strategy.read,
            sums_in_layers=strategy.traits.sums_in_forward_pass and is_divided,
        )

    def update(self, config: Config, shared_tables: Collection[int]) -> ModelUpdate:
        """Returns the weight update, which follows the all-reduce.

        The user's optimizer gets the rows of a gradient as `fit` has them. These are
        sums over examples at the places `shared_tables`.
        """
        return ModelUpdate(
            self.model,
            self.optimizer,
            self.step,
            self.layer_state,
            config,
            self.loss_scale,
            merge_rows=shared_tables if self.has_compiled_optimizer else None,
        )

    def logs(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the logs of `fit` for some sums, and sets metrics as it does."""
        for variable, value in self.objective.metric_state(sums):
            variable.assign(value)
        return self.objective.results(sums)

    def eval_step(self) -> ReplicaFunction:
        """Returns the evaluation step of one replica."""
        model = self.pipeline or self.model
        variables, states = self.model.trainable_variables, seed_states(self.model)
        step = EvalStep(model, self.objective, variables, states)
        return with_totals(step, model, self.objective)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One training of several that a program does one after another.

    Attributes:
      number: Number of the training, from 1.
      first_step: Number of updates that earlier ones have applied.
    """

    number: int = 1
    first_step: int = 0

    def order_seed(self, seed: int) -> int:
        """Returns the seed of the order of examples, another one for each training.

        Otherwise a program that calls `fit` once for each epoch would train on the same
        batches in all of them.
        """
        return (seed + (self.number - 1) * _SEED_STRIDE) % 2**63


ONLY_PHASE = Phase()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopParts(ModelParts):
    """Model and loops of a training, apart from its data.

    Attributes:
      strategy: Strategy with its devices.
      loop_function: Inner training loop, not traced before its first training.
      evaluation_loop: Loop that sums over held-out examples, as `loop_function`.
      compilation: Decision about what XLA compiles of the training.
    """

    strategy: Strategy
    loop_function: LoopFunction
    evaluation_loop: LoopFunction
    compilation: Compilation


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingParts(LoopParts):
    """Parts of a run, ready to train or evaluate.

    Attributes:
      config: Configuration that the parts are made from.
      data: Training and held-out examples.
      order: Order of the training examples.
      train_steps: Number of applied updates at the end of the run.
      evaluation: Evaluation on the held-out examples.
      rebuild: Function that builds the model again, outside of the strategy.
      phase: Number of the call of `fit` that a program trains with, from 1.
    """

    config: Config
    data: Data
    order: Order
    train_steps: int
    evaluation: Evaluation
    rebuild: Callable[[], keras.Model]
    phase: int = 1

    def loops(self) -> LoopParts:
        """Returns the parts without the data."""
        names = [field.name for field in dataclasses.fields(LoopParts)]
        return LoopParts(**{name: getattr(self, name) for name in names})

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the loss and metrics from sums over training steps, as in `fit`."""
        # Keras's own `fit` gives means, whose sums have no state of metrics.
        by_keras = self.config.model.keras_fit
        return (means_over_examples if by_keras else self.objective.results)(sums)

    @property
    def eval_every_steps(self) -> int | None:
        """Steps between evaluations; None for only at the end.

        It depends on no clock, so that all processes evaluate at the same steps, and
        so does a run that is continued.
        """
        given = self.config.report.eval_every_steps
        if not self.evaluation.num_examples:
            return None
        if given != 0:
            return given
        per_epoch = self.order.steps_per_epoch
        whole_epochs = per_epoch * -(-_FEWEST_STEPS_BETWEEN_EVALUATIONS // per_epoch)
        return max(min(whole_epochs, self.train_steps // _FEWEST_EVALUATIONS), 1)

    def checkpoints(
        self, folder: pathlib.Path, *, with_replica_state: bool = False
    ) -> Checkpoints:
        """Returns the checkpoints in a folder, to save these parts or restore them.

        The replicas' own state is that of one strategy and number of replicas.
        """
        return Checkpoints(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            step=self.step,
            keep=self.config.report.keep_checkpoints,
            loss_scale=self.loss_scale_variables(),
            replica_state=self.strategy.replica_state() if with_replica_state else (),
        )

    def applied_steps(self) -> int:
        """Returns the number of applied updates."""
        return int(self.step.numpy())

    def batches(self, first_step: int) -> GlobalBatches:
        """Returns the training batches from a step to the end of the run."""
        return batches_of(
            self.data.train,
            self.order,
            first_step,
            self.train_steps,
            augment=self.data.augment,
        )

    def state_variables(self) -> list[tf.Variable]:
        """Returns the variables that a resumed run needs.

        These are the variables of a checkpoint and the factor of the learning rate.
        """
        tracked = [*self.model.weights, *self.saved_optimizer_variables()]
        return [
            *(variable.value for variable in tracked),
            self.step,
            self.learning_rate_scale.variable,
            *self.strategy.replica_state(),
        ]

    def optimizer_variables(self) -> list[tf.Variable]:
        """Returns the variables that hold the optimizer's state while steps run."""
        variables = [v.value for v in self.saved_optimizer_variables()]
        shard = self.strategy.optimizer_shard()
        return variables if shard is None else shard.held_of(variables)

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
        shards = self.config.strategy.num_shards(self.strategy.num_replicas)
        # Rounded up: the largest shard of a global batch.
        num_examples = -(-self.config.length.global_batch_size // shards)
        for layer in self.embeddings():
            size -= bytes_of([v.value for v in layer.shards])
            # Upper bound: no two examples use the same row.
            size += layer.most_gradient_bytes(num_examples)
        return size
