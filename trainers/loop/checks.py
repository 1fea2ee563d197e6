"""Checks that settings, strategy, data and model fit together.

Each raises `UsageError` if they do not.
"""

import keras

from models.embedding import ShardedEmbedding
from models.objective import Objective
from strategies.base import Strategy
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.optimizers import weights_of
from trainers.config.config import Config
from trainers.config.program import batch_in_words
from trainers.inputs.sources import Data, StreamedSource
from trainers.inputs.tfrecord.stream import RecordStream
from trainers.loop.parts import TrainingParts
from trainers.model.layer_state import sums_over_replicas
from trainers.model.optimizers.properties import (
    ELEMENTWISE,
    updates_each_element,
    with_conditional_update,
)
from trainers.model.optimizers.several import SeveralOptimizers
from trainers.model.sparse_gradients import embeddings_of
from trainers.model.train_step import TrainStep
from trainers.model.xla_errors import compile_error
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code import without_weights
from trainers.user_code.few_examples import few_examples
from trainers.user_code.own_step.objective import OwnStep

_SEVERAL_PASSES = (
    "which updates weights several times in a step, or uses them after their update"
)


def check_batch_size(config: Config, strategy: Strategy, data: Data) -> None:
    """Checks the batch size against the actual number of replicas.

    The configuration can only check a number of replicas that a flag gives.
    """
    size = config.length.global_batch_size
    batch = batch_in_words(config, isinstance(data.train, StreamedSource))
    replicas = config.strategy.num_shards(strategy.num_replicas)
    steps = config.strategy.gradient_accumulation_steps
    if size < replicas * steps:
        parts = ""
        flag = "--num_workers" if strategy.traits.multi_process else "--num_replicas"
        if steps > 1:
            parts = f" x {steps} micro-batches"
            flag += " or --gradient_accumulation_steps"
        raise UsageError(
            f"{batch} is smaller than the {replicas} replicas"
            f"{parts}: each needs an example; raise it, or lower {flag}."
        )
    if config.drops_last_batch and size > data.train.num_examples:
        flag = (
            "--set=length.drop_last_batch=true, which --mode=predict sets"
            if config.length.drop_last_batch
            else "--sharding"
        )
        raise UsageError(
            f"{batch} is more than the {data.train.num_examples:,} training examples, "
            f"and smaller batches are dropped ({flag}): lower it."
        )


def check_files(strategy: Strategy, data: Data) -> None:
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


def check_dense(model: keras.Model) -> None:
    """Rejects embeddings for --set=report.replica_statistics=true."""
    if embeddings_of(model):
        raise UsageError(
            "--set=report.replica_statistics=true does not fit a table of embeddings, "
            "of whose gradient each replica has other rows: leave it out, or choose "
            "another --model."
        )


def check_compiled_optimizer(
    optimizer: keras.optimizers.Optimizer | None, strategy: Strategy
) -> None:
    """Refuses an optimizer that updates in a branch where that is not possible."""
    if optimizer is None or strategy.traits.applies_in_branches:
        return
    found = with_conditional_update(optimizer)
    if found is not None:
        raise UsageError(
            f"{type(found).__name__} with gradient_accumulation_steps or "
            f"ema_overwrite_frequency does not fit --strategy={strategy.name}: leave "
            "it out (--gradient_accumulation_steps divides a batch instead), or choose "
            "tower or one_device."
        )


def check_overwritten(model: keras.Model, num_parts: int) -> None:
    """Refuses layers whose gradients do not add up over the parts of a batch.

    Keras's float8 layers return a new scale and the largest values of a batch in place
    of gradients (keras/src/layers/core/dense.py, `_float8_call`).
    """
    if num_parts == 1:
        return
    for variable in model.trainable_variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise UsageError(
                f"{variable.path!r} gets a new value in place of a gradient, as in "
                f"float8, which {num_parts} parts of a batch cannot add up: choose "
                "--strategy=one_device, or another dtype of the layer."
            )


def check_shardable(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    objective: Objective,
    keeps_rows: bool,
) -> None:
    """Checks that --shard_optimizer_state can divide the update of a model.

    `keeps_rows` is True if the optimizer is to see each row of a sparse gradient by
    itself, as in `fit`.
    """
    flag = "--shard_optimizer_state"
    if isinstance(optimizer, SeveralOptimizers):
        raise UsageError(
            f"{flag} does not fit a train_step of {type(model).__name__}, which calls "
            "its optimizer itself: leave it out."
        )
    if not updates_each_element(optimizer):
        raise UsageError(
            f"{flag} does not fit {type(optimizer).__name__}: only an optimizer that "
            "updates each element of a weight by itself can be divided; choose "
            f"{', '.join(kind.__name__ for kind in ELEMENTWISE)}, or leave it out."
        )
    if optimizer.clipnorm is not None or optimizer.global_clipnorm is not None:
        raise UsageError(
            f"{flag} does not fit clipnorm or global_clipnorm of "
            f"{type(optimizer).__name__}, which are norms of whole gradients: use "
            "--clip_global_norm instead, or leave it out."
        )
    if [*map(id, weights_of(optimizer))] != [*map(id, model.trainable_variables)]:
        raise UsageError(
            f"{flag} does not fit an {type(optimizer).__name__} that was built for "
            "other weights than the trained ones: compile the model with a new "
            "optimizer, or leave it out."
        )
    if isinstance(objective, OwnStep) and objective.num_passes > 1:
        raise UsageError(
            f"{flag} does not fit {objective.title}, {_SEVERAL_PASSES}: leave it out."
        )
    has_table = any(
        isinstance(layer, (keras.layers.Embedding, ShardedEmbedding))
        for layer in flat_layers(model)
    )
    if keeps_rows and has_table:
        raise UsageError(
            f"{flag} adds up the gradient of a table of embeddings, whose rows "
            f"{type(optimizer).__name__} of the program would see one by one: add "
            "--set=optimizer.sparse_gradients=false, or leave it out."
        )
    if any(weight.overwrite_with_gradient for weight in model.trainable_variables):
        raise UsageError(f"{flag} does not fit weights in float8: leave it out.")


def check_own_step(objective: OwnStep, config: Config, num_replicas: int) -> None:
    """Refuses a model's own step that cannot be divided as the settings ask."""
    title, choice = objective.title, config.strategy
    averaged = choice.averaged
    num_parts = choice.num_shards(num_replicas) * choice.gradient_accumulation_steps
    if objective.rows is not None and num_parts > 1:
        raise UsageError(
            f"{title} computes batches of {objective.rows} examples alone, so that "
            f"nothing shows how its {num_parts} parts of a batch add up: choose "
            "--strategy=one_device, or take the size of a batch from the inputs."
        )
    if averaged == "losses":
        raise UsageError(
            f"--average=losses does not fit {title}, which differentiates by itself: "
            "leave it out."
        )
    if objective.num_passes == 1:
        return
    is_whole = choice.gradient_accumulation_steps == 1
    if config.report.replica_statistics or not is_whole:
        raise UsageError(
            "--gradient_accumulation_steps and replica_statistics do not fit "
            f"{title}, {_SEVERAL_PASSES}: leave them out."
        )
    one_by_one = choice.traits.updates_in_turn and choice.is_synchronous
    if not one_by_one or averaged not in (None, "gradients"):
        raise UsageError(
            f"{title}, {_SEVERAL_PASSES}, does not fit --strategy={choice.strategy} "
            "here: choose one_device, tower, mirrored or multi_worker_mirrored with "
            "synchronous updates of averaged gradients."
        )


def check_trainable(model: keras.Model, config: Config) -> None:
    """Rejects a model without weights to train, or with weights that are not real."""
    script = config.model.script
    given = f"--script={script}" if script else f"--model={config.model.model}"
    for variable in model.trainable_variables:
        if "complex" in variable.dtype:
            raise UsageError(
                f"{given} has {variable.path!r} of {variable.dtype}, and norms, sums "
                "and losses here are of real numbers: keep the real and the imaginary "
                "part in weights of their own, and join them by tf.complex."
            )
    if not model.trainable_variables:
        raise without_weights(given, model)


def check_compilable(parts: TrainingParts, step: TrainStep | PipelineStep) -> None:
    """Checks that XLA can compile the training step of a replica, and runs nothing.

    It also refuses layers of which XLA would compute more than the step needs.
    """
    for layer in flat_layers(parts.model):
        if isinstance(layer, ShardedEmbedding):
            reason = "XLA would need its whole table in every step, not the rows in use"
        elif sums_over_replicas(layer):
            reason = "its sum over replicas cannot be compiled"
        else:
            continue
        raise UsageError(
            f"--jit_compile=on does not fit layer {layer.name!r}: {reason}; leave "
            "it out."
        )
    # XLA reports an error in a pipeline stage only when the stage runs.
    if not isinstance(step, TrainStep):
        return
    rows = parts.order.global_batch_size // parts.strategy.num_replicas
    # No batch of the training, because a generator yields each of those only once.
    batch = few_examples(parts.data.sample_source, max(rows, 1))
    try:
        step.compile_for(batch)
    except Exception as error:
        refusal = compile_error(str(error))
        if refusal is None:
            raise
        raise refusal from error
