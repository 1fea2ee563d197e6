"""Lines that a run prints at its start and at its end."""

import math
import shlex
from collections.abc import Mapping

import keras

from strategies.common.console import Console
from strategies.common.text import counted
from strategies.devices.assignment import describe, substitution
from trainers.config.config import Config
from trainers.config.program import is_sent_call
from trainers.loop.memory_estimate import (
    capacity_of,
    estimate_memory,
    largest,
    warning_of,
)
from trainers.loop.parts import TrainingParts
from trainers.model.layer_state import sums_over_replicas
from trainers.model.optimizers.loss_scale import inside_of_scale
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.metrics_writer import metrics_in_words
from trainers.reporting.result import ALWAYS_FINAL
from trainers.run_dir.run_dir import RunDir, tensorboard_command
from trainers.user_code import PerBatchError
from trainers.user_code.few_examples import EXAMPLES_OF_A_STEP, few_examples
from trainers.user_code.own_step.objective import OwnStep
from trainers.user_code.state_remark import (
    forward_remark,
    normalizations,
    normalizes_examples,
)


def print_startup_report(
    parts: TrainingParts, folder: RunDir, first_step: int, console: Console
) -> None:
    """Prints model, data, devices and folder of a run, with warnings."""
    strategy = parts.strategy
    replicas = counted(strategy.num_replicas, "replica")
    num_microbatches = parts.config.strategy.gradient_accumulation_steps
    if num_microbatches > 1:
        replicas += f" of {num_microbatches} micro-batches"
    console.item(
        "strategy", f"{strategy.name}: {replicas} on {describe(strategy.devices)}"
    )
    console.item(
        "model",
        # `count_params` refuses a model that is made of others and has no call.
        f"{parts.config.model.name}, "
        f"{sum(math.prod(v.shape) for v in parts.model.weights):,} parameters",
    )
    if parts.pipeline is not None:
        for stage in parts.pipeline.stages:
            console.item("", stage.in_words())
    console.item("data", _data_in_words(parts))
    console.item("xla", parts.compilation.words)
    fit = f", fit {parts.phase} of the program" if parts.phase > 1 else ""
    is_resumed = first_step > parts.order.first_step
    resumed = f", continued at step {first_step}" if is_resumed else ""
    console.item("run", f"{folder.path}{fit}{resumed}")
    for words in (
        _other_optimizer(parts),
        _too_long_warmup(parts),
        _normalized_apart(parts),
        _divided_otherwise(parts),
        substitution(parts.config.strategy.device_choice),
    ):
        if words:
            console.warn(words)
    # Only the memory with the largest demand is shown and checked.
    name, estimate = largest(estimate_memory(parts))
    console.item("memory", estimate)
    warning = warning_of(name, estimate, capacity_of(name))
    if warning is not None:
        console.warn(warning)
    if parts.config.optimizer.lr_scaling != "none":
        console.item("rate", _scaled_rate(parts.config))
    update = parts.config.optimizer
    if parts.embeddings() and update.sparse_gradients and not update.updates_rows:
        decay = f" --weight_decay={update.weight_decay}" if update.weight_decay else ""
        console.warn(
            f"--optimizer={update.optimizer}{decay} passes over every row of the "
            "embedding in every step; sgd and adagrad without --weight_decay change "
            "only the rows that were used"
        )


def _normalized_apart(parts: TrainingParts) -> str | None:
    """Returns a warning if layers normalize parts of a global batch, or None."""
    config = parts.config.strategy
    num_microbatches = config.gradient_accumulation_steps
    if parts.pipeline is not None:
        num_microbatches *= parts.pipeline.num_microbatches
    num_parts = num_microbatches * config.num_shards(parts.strategy.num_replicas)
    can_sum = parts.strategy.traits.sums_in_forward_pass
    names = [
        layer.name
        for layer in normalizations(parts.model)
        # Otherwise it normalizes with its moving statistics.
        if layer.trainable and not (can_sum and sums_over_replicas(layer))
    ]
    if num_parts == 1 or not names or not _normalizes_examples(parts):
        return None
    # Networks may have a hundred such layers.
    several = f" and {len(names) - 1} more normalize" if len(names) > 1 else ""
    num_rows = parts.config.length.global_batch_size
    words = (
        f"layer {names[0]!r}{several or ' normalizes'} "
        f"{max(num_rows // num_parts, 1)} of the {num_rows} rows of a global batch at "
        "a time: another training than that of one_device"
    )
    if num_microbatches > 1:
        return words
    where = "" if can_sum else " under mirrored and multi_worker_mirrored"
    return f"{words}; BatchNormalization(synchronized=True) normalizes all{where}"


def _normalizes_examples(parts: TrainingParts) -> bool:
    if isinstance(parts.objective, OwnStep):
        return parts.objective.normalizes
    few = few_examples(parts.data.sample_source, EXAMPLES_OF_A_STEP)
    return normalizes_examples(parts.model, few)


def _divided_otherwise(parts: TrainingParts) -> str | None:
    """Returns a warning if replicas of a user's model compute something else, or None.

    A program has had its warning before its model was built.
    """
    model = parts.config.model
    num_shards = parts.config.strategy.num_shards(parts.strategy.num_replicas)
    if model.script or not model.is_custom or num_shards == 1:
        return None
    few = few_examples(parts.data.sample_source, EXAMPLES_OF_A_STEP)
    try:
        return forward_remark(parts.model, few)
    except PerBatchError as error:
        return str(error)


def _other_optimizer(parts: TrainingParts) -> str | None:
    """Returns a warning if the model was compiled with another optimizer, or None."""
    compiled = parts.replaced_optimizer
    # RMSprop is Keras's default if `compile` gets no optimizer.
    if compiled is None or type(compiled) is keras.optimizers.RMSprop:
        return None
    # Under mixed_float16 `compile` wraps it into an optimizer that scales the loss.
    compiled = inside_of_scale(compiled)
    update = parts.config.optimizer
    rate = compiled.get_config().get("learning_rate")
    name = type(compiled).__name__.lower()
    # Keras stores the rate as float32; a schedule is no float.
    is_same_rate = isinstance(rate, float) and math.isclose(
        rate, update.learning_rate, rel_tol=1e-6
    )
    if name == update.optimizer and is_same_rate:
        return None
    shown = f" with the rate {rate:g}" if isinstance(rate, float) else ""
    return (
        f"the model was compiled with {name}{shown}, and is trained with "
        f"--optimizer={update.optimizer} --learning_rate={update.learning_rate:g}"
    )


def _too_long_warmup(parts: TrainingParts) -> str | None:
    """Returns a warning if the run ends before its learning rate has risen, or None."""
    warmup = parts.config.optimizer.warmup_steps
    steps = parts.train_steps - parts.order.first_step
    if parts.has_compiled_optimizer or warmup <= steps:
        return None
    return (
        f"--warmup_steps={warmup} are more than the {steps} steps of this training: "
        f"its learning rate rises to {steps / warmup:.2g} of the full one"
    )


def _scaled_rate(config: Config) -> str:
    update, size = config.optimizer, config.length.global_batch_size
    steps = update.warmup_steps
    warmup = f", after {steps:,} steps of warm-up" if steps else ""
    return (
        f"{update.peak_learning_rate(size):g}{warmup}: "
        f"{update.learning_rate:g} of a global batch of "
        f"{update.base_global_batch_size} scaled to {size} ({update.lr_scaling})"
    )


def _data_in_words(parts: TrainingParts) -> str:
    data = parts.data
    words = (
        f"{parts.config.data_name}, {data.train.num_examples:,} examples to train, "
        f"{data.evaluation.num_examples:,} held out"
    )
    best = data.best_eval_loss
    return words if best is None else f"{words}, best eval_loss {best:.4f}"


def print_final_summary(
    console: Console,
    status: str,
    step: int,
    final: Mapping[str, float | None],
    metrics: RunMetrics,
    folder: RunDir,
    script: str | None = None,
) -> None:
    """Prints the outcome of a run, its speed and where to look at it."""
    outcome = f"{status} | step {step}"
    # In the order of result.json.
    ordered = {**dict.fromkeys(ALWAYS_FINAL), **final}
    measured = {name: value for name, value in ordered.items() if value is not None}
    console.say(f"{outcome} | {metrics_in_words(measured)}" if measured else outcome)
    speed = metrics.process.throughput.summary()
    if speed["step_milliseconds"]:
        console.say(
            f"speed     {speed['examples_per_second']:,.1f} examples/s, "
            f"{speed['step_milliseconds']['total']:.2f} ms/step"
        )
    idle = metrics.run_idle.in_words()
    if idle is not None:
        console.say(f"pipeline  {idle}")
    console.say(f"run       {folder.path}")
    if status == "preempted":
        words = shlex.join([f"--run_dir={folder.path}", "--resume=auto"])
        same = f"flags and {words}"
        if is_sent_call(script):
            settings = {"run_dir": str(folder.path), "resume": "auto"}
            same = f"call of trainers.fit and settings={settings}"
        console.say(f"continue  with the same {same}")
    if folder.exports.is_dir():
        exported = sorted(path.name for path in folder.exports.iterdir())
        console.say(f"export    {folder.exports}: {', '.join(exported)}")
    is_own = folder.tensorboard == str(folder.path / "tb")
    logdir = folder.path if is_own else folder.tensorboard
    console.say(f"view      {tensorboard_command(logdir)}")
