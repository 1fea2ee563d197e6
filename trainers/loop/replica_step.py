"""Step of one replica, as a strategy compiles it."""

from collections.abc import Collection

from strategies.base import Strategy
from strategies.common.types import ReplicaFunction
from trainers.config.config import Config
from trainers.inputs.sources import Data
from trainers.loop import checks
from trainers.loop.parts import ModelParts
from trainers.model.gradient_accumulation import Accumulation
from trainers.model.gradient_noise_scale import WithStatistics
from trainers.model.sparse_gradients import tables_shared_by_examples
from trainers.model.train_step import TrainStep, with_totals
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code.few_examples import few_examples
from trainers.user_code.own_step.train_step import OwnTrainStep


def replica_step(
    train_step: TrainStep | PipelineStep,
    parts: ModelParts,
    config: Config,
    strategy: Strategy,
) -> ReplicaFunction:
    """Returns the step of one replica, with accumulation and statistics if wanted."""
    step: ReplicaFunction = train_step
    num_parts = config.strategy.gradient_accumulation_steps
    if isinstance(train_step, OwnTrainStep):
        checks.check_own_step(train_step.objective, config, strategy.num_replicas)
        if num_parts == 1 and not config.report.replica_statistics:
            return train_step.in_turn()
    if num_parts > 1:
        step = Accumulation(train_step, num_parts)
    if config.report.replica_statistics:
        checks.check_dense(parts.model)
        step = WithStatistics(step, strategy.num_replicas)
    return with_totals(step, parts.model, parts.objective)


def shared_tables(
    train_step: TrainStep | PipelineStep,
    parts: ModelParts,
    config: Config,
    strategy: Strategy,
    data: Data,
) -> Collection[int]:
    """Returns the tables that get a gradient of all rows from every part of a batch.

    The user's optimizer gets the rows of a gradient one by one, as from `fit`. Where
    replicas or micro-batches divide a batch, each of them has all rows of a table of
    positions, and Keras's optimizers would square the parts of a row one by one.

    Returns:
      Places among the trainable variables.
    """
    num_shards = config.strategy.num_shards(strategy.num_replicas)
    num_parts = config.strategy.gradient_accumulation_steps
    if parts.pipeline is not None:
        num_parts = parts.pipeline.num_microbatches
    is_divided = num_shards * num_parts > 1
    has_rows = parts.has_compiled_optimizer and config.optimizer.sparse_gradients
    if not (is_divided and has_rows):
        return ()
    step: ReplicaFunction = train_step
    if isinstance(train_step, OwnTrainStep):
        if not train_step.objective.has_sparse_gradients:
            return ()
        step = train_step.in_turn()
    # A pipeline divides what it gets into its number of micro-batches.
    fewest = 1 if parts.pipeline is None else num_parts
    one, two = (few_examples(data.sample_source, most) for most in (fewest, 2 * fewest))
    if one.indices.shape == two.indices.shape:
        # With a single example nothing is divided.
        return ()
    return tables_shared_by_examples(
        with_totals(step, parts.model, parts.objective), parts.model, one, two
    )
