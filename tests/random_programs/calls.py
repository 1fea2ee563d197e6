"""Calls of `compile` and `fit`."""

from collections.abc import Mapping, Sequence

from tests.random_programs.chance import Chance
from tests.random_programs.outputs import Output

_SCHEDULES = (
    "keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.8)",
    "keras.optimizers.schedules.CosineDecay(0.01, 6, "
    "warmup_target=0.02, warmup_steps=2)",
    "keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.01, 0.02, 0.004])",
    "parts.Ramp()",
)
_OPTIMIZERS = {
    "SGD": ("", ", momentum=0.9", ", momentum=0.9, nesterov=True"),
    "Adam": ("", "", ", amsgrad=True"),
    "RMSprop": ("", ", centered=True, momentum=0.3"),
    **dict.fromkeys(("AdamW", "Adagrad", "Nadam", "Adamax", "Adadelta"), ("",)),
    # Not Lion and Adafactor: they make a step of a gradient that is rounding alone.
    **dict.fromkeys(("Ftrl", "Lamb"), ("",)),
}


def by_output(chance: Chance, values: Sequence[str], has_names: bool) -> str:
    """Returns an expression for one value of each output."""
    if len(values) == 1:
        return values[0]
    if has_names or chance.happens(0.5):
        named = (f"'out{index}': {value}" for index, value in enumerate(values))
        return "{" + ", ".join(named) + "}"
    return f"[{', '.join(values)}]"


def _optimizer(chance: Chance, is_accumulated: bool) -> str:
    name = chance.pick(*_OPTIMIZERS)
    rate = chance.pick("0.01", "0.003", *_SCHEDULES)
    more = chance.pick(*_OPTIMIZERS[name])
    if chance.happens(0.15):
        more += chance.pick(
            ", clipnorm=0.3", ", clipvalue=0.05", ", global_clipnorm=0.4"
        )
    if chance.happens(0.12) and name != "AdamW":
        more += ", weight_decay=0.02"
    if chance.happens(0.12):
        more += ", use_ema=True, ema_momentum=0.8"
    if is_accumulated and chance.happens(0.3):
        more += f", gradient_accumulation_steps={chance.pick(2, 3)}"
    return f"keras.optimizers.{name}({rate}{more})"


def compile_call(
    chance: Chance,
    outputs: Sequence[Output],
    *,
    has_names: bool,
    is_accumulated: bool,
    can_weigh_metrics: bool,
) -> str:
    """Returns a call of `compile`.

    Args:
      chance: Choices of the program.
      outputs: Outputs of the model.
      has_names: True if the model returns its outputs by name.
      is_accumulated: True if the optimizer may accumulate gradients.
      can_weigh_metrics: True if the step of the model knows weighted metrics.
    """
    optimizer = _optimizer(chance, is_accumulated)
    if chance.happens(0.15):
        optimizer = repr(chance.pick("adam", "sgd", "rmsprop", "adamw"))
    losses = by_output(chance, [each.loss for each in outputs], has_names)
    words = [f"optimizer={optimizer}", f"loss={losses}"]
    if len(outputs) > 1 and chance.happens(0.5):
        words.append(f"loss_weights={by_output(chance, ['0.3', '1.5'], has_names)}")
    for name, probability in (("metrics", 0.7), ("weighted_metrics", 0.25)):
        if chance.happens(probability) and (name == "metrics" or can_weigh_metrics):
            found = [f"[{', '.join(chance.some(each.metrics, 2))}]" for each in outputs]
            words.append(f"{name}={by_output(chance, found, has_names)}")
    if chance.happens(0.15):
        words.append(f"steps_per_execution={chance.pick(2, 3)}")
    return f"model.compile({', '.join(words)})"


def fit_call(
    chance: Chance,
    *,
    num_examples: int,
    batch_size: int | None,
    compiled: str,
    class_weights: bool,
    has_weights: bool,
    last_batch: int | None,
) -> str:
    """Returns a call of `fit`.

    Args:
      chance: Choices of the program.
      num_examples: Number of examples to train on.
      batch_size: Batch size; None for Keras's.
      compiled: The call of `compile` before.
      class_weights: True if classes may get weights.
      has_weights: True if the examples have weights.
      last_batch: Number of batches after which the process is killed; None to let it
        run.
    """
    # Keras rounds numbers of steps up to multiples of it, and a run does not.
    is_exact = "steps_per_execution" not in compiled
    size = batch_size or 10
    steps = -(-num_examples // size)
    batches = f"parts.packed(x, y, weights), {size}"
    kinds = {"arrays": 5, "dataset": 2, "py_dataset": 1, "endless": float(is_exact)}
    kind = chance.weighted(kinds)
    if kind == "arrays":
        words = ["x, y"]
        words += [f"batch_size={batch_size}"] if batch_size else []
        words += ["sample_weight=weights"] if has_weights else []
        words += ["validation_split=0.2"] if chance.happens(0.2) else []
        if is_exact and chance.happens(0.15):
            # Keras's own size of a batch is 32.
            words.append(f"steps_per_epoch={min(2, -(-num_examples // 32))}")
    elif kind == "dataset":
        more = ", drop_remainder=True" if chance.happens(0.3) else ""
        end = chance.pick("", ".prefetch(2)", ".cache()", ".map(lambda *parts: parts)")
        data = "parts.dataset(parts.packed(x, y, weights))"
        words = [f"{data}.batch({size}{more}){end}"]
    elif kind == "py_dataset":
        words = [f"parts.Batches({batches})"]
    else:
        number = chance.pick(steps, 3)
        words = [f"parts.endless({batches})", f"steps_per_epoch={number}"]
    epochs = chance.pick(1, 2, 3)
    words.append(f"epochs={epochs}")
    if epochs > 1 and chance.happens(0.15):
        words.append("initial_epoch=1")
    if class_weights and kind != "endless" and chance.happens(0.25):
        words.append("class_weight={0: 0.5, 1: 2.0, 2: 1.0, 3: 3.0}")
    if "validation_split=0.2" not in words and chance.happens(0.55):
        words += _validation(chance, is_exact)
    callbacks = _callbacks(chance, compiled)
    callbacks += [] if last_batch is None else [f"parts.KillOnce({last_batch})"]
    if callbacks:
        words.append(f"callbacks=[{', '.join(callbacks)}]")
    return f"model.fit({', '.join(words)})"


def _validation(chance: Chance, is_exact: bool) -> list[str]:
    arrays = chance.pick("held_out_weights", "None")
    packed = f"parts.packed(held_out_x, held_out_y, {arrays})"
    data = chance.pick(
        "(held_out_x, held_out_y)",
        f"parts.dataset({packed}).batch({chance.pick(8, 11)})",
    )
    words = [f"validation_data={data}"]
    if "dataset" not in data and chance.happens(0.3):
        words.append("validation_batch_size=9")
    if chance.happens(0.2):
        words.append("validation_freq=2")
    if is_exact and chance.happens(0.15):
        words.append("validation_steps=2")
    return words


def _callbacks(chance: Chance, compiled: str) -> list[str]:
    has_schedule = "schedules." in compiled or "Ramp" in compiled
    found: Mapping[str, float] = {
        "parts.Logs()": 0.35,
        "keras.callbacks.EarlyStopping('loss', patience=1, mode='max', "
        "restore_best_weights=True)": 0.12,
        "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)": 0.1,
        "keras.callbacks.ReduceLROnPlateau('loss', factor=0.3, patience=0, "
        "mode='max')": 0.1,
        "keras.callbacks.ModelCheckpoint('best.weights.h5', monitor='loss', "
        "mode='min', save_best_only=True, save_weights_only=True)": 0.1,
        "keras.callbacks.LambdaCallback("
        "on_train_batch_end=lambda batch, logs: None)": 0.1,
    }
    return [
        callback
        for callback, probability in found.items()
        if chance.happens(probability)
        # A rate of a schedule cannot be set.
        and not (has_schedule and ("Scheduler" in callback or "Reduce" in callback))
    ]
