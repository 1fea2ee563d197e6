"""Runs that use every setting of an update, each with Keras's own training."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

STEPS = 20
GLOBAL_BATCH_SIZE = 16

# A function from the number of applied updates to the learning rate of the next update.
Rate = Callable[[int], float]


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate schedule that is a table with the rate of each step."""

    def __init__(self, rate: Rate):
        self._rates = tf.constant([rate(step) for step in range(STEPS)], tf.float64)

    def __call__(self, step: Any) -> tf.Tensor:
        return self._rates[tf.cast(step, tf.int32)]

    def get_config(self) -> dict[str, Any]:
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run, and the training of Keras that it must equal.

    Attributes:
      flags: Flags of the run, in addition to the flags of all cases.
      rate: Learning rate of each step.
      optimizer: Function that makes Keras's optimizer.
      kind: Data and model: quantities, categories, or mlp of the catalogue.
      label_smoothing: Label smoothing of Keras's loss.
      loss_factor: Number by which Keras's loss is multiplied.
    """

    flags: tuple[str, ...]
    rate: Rate
    optimizer: Callable[[Rates], keras.optimizers.Optimizer]
    kind: str = "quantities"
    label_smoothing: float = 0.0
    loss_factor: float = 1.0


def constant(rate: float) -> Rate:
    return lambda step: rate


def cosine(peak: float, num_steps: int = STEPS) -> Rate:
    """Returns Keras's cosine decay, which ends at zero after the last step."""
    schedule = keras.optimizers.schedules.CosineDecay(peak, num_steps)
    return lambda step: float(schedule(step))


def steps_of_ten(peak: float, num_steps: int = STEPS) -> Rate:
    """Returns Keras's piecewise rate; a boundary is the last step of a rate."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [num_steps // 2 - 1, num_steps * 3 // 4 - 1],
        [peak, peak / 10, peak / 100],
    )
    return lambda step: float(schedule(step))


def after_warm_up(num_steps: int, peak: float, then: Rate) -> Rate:
    """Returns a rate that rises by an equal part with each step.

    Keras's own warm-up begins with a step whose rate is zero.
    """
    return lambda step: (
        peak * (step + 1) / num_steps if step < num_steps else then(step - num_steps)
    )


SGD, Adagrad = keras.optimizers.SGD, keras.optimizers.Adagrad
Adam, AdamW = keras.optimizers.Adam, keras.optimizers.AdamW

CASES: Mapping[str, Case] = {
    "sgd, clipped, in micro-batches": Case(
        flags=(
            *("--optimizer=sgd", "--learning_rate=0.25", "--clip_global_norm=0.125"),
            # 16 rows make micro-batches of 6, 5 and 5.
            "--gradient_accumulation_steps=3",
        ),
        rate=constant(0.25),
        optimizer=lambda rates: SGD(rates, global_clipnorm=0.125),
    ),
    "sgd with decay, of the sum of two towers": Case(
        flags=(
            *("--optimizer=sgd", "--learning_rate=0.25", "--weight_decay=0.5"),
            *(
                "--strategy=tower",
                "--num_replicas=2",
                "--set=strategy.gradient_reduction=sum",
            ),
        ),
        rate=constant(0.25),
        optimizer=lambda rates: SGD(rates, weight_decay=0.5),
        loss_factor=2.0,
    ),
    "momentum, linear scaling, warm-up": Case(
        flags=(
            *("--optimizer=momentum", "--learning_rate=0.0625", "--warmup_steps=5"),
            *("--lr_scaling=linear", "--base_global_batch_size=4"),
        ),
        rate=after_warm_up(5, 0.25, constant(0.25)),
        optimizer=lambda rates: SGD(rates, momentum=0.9),
    ),
    "momentum of 0.5 with decay, step": Case(
        flags=(
            *(
                "--optimizer=momentum",
                "--set=optimizer.momentum=0.5",
                "--weight_decay=0.25",
            ),
            *("--learning_rate=0.25", "--learning_rate_schedule=step"),
        ),
        rate=steps_of_ten(0.25),
        optimizer=lambda rates: SGD(rates, momentum=0.5, weight_decay=0.25),
    ),
    "adagrad with decay, cosine, in epochs": Case(
        flags=(
            *("--optimizer=adagrad", "--learning_rate=0.25", "--weight_decay=0.125"),
            *("--learning_rate_schedule=cosine", f"--epochs={STEPS}"),
        ),
        rate=cosine(0.25),
        optimizer=lambda rates: Adagrad(rates, weight_decay=0.125),
    ),
    "adam": Case(
        flags=("--optimizer=adam", "--learning_rate=0.03125"),
        rate=constant(0.03125),
        optimizer=Adam,
    ),
    "adam with decay, clipped, warm-up, cosine": Case(
        flags=(
            *("--optimizer=adam", "--learning_rate=0.03125", "--weight_decay=0.5"),
            *("--learning_rate_schedule=cosine", "--warmup_steps=5"),
            "--clip_global_norm=0.125",
        ),
        rate=after_warm_up(5, 0.03125, cosine(0.03125, STEPS - 5)),
        optimizer=lambda rates: Adam(rates, weight_decay=0.5, global_clipnorm=0.125),
    ),
    "adamw, without a decay unless it is given": Case(
        flags=("--optimizer=adamw", "--learning_rate=0.03125"),
        rate=constant(0.03125),
        optimizer=lambda rates: AdamW(rates, weight_decay=0.0),
    ),
    "adamw, scaling by the root, warm-up, step": Case(
        flags=(
            *("--optimizer=adamw", "--learning_rate=0.03125", "--weight_decay=0.5"),
            *("--learning_rate_schedule=step", "--warmup_steps=4"),
            *("--lr_scaling=sqrt", "--base_global_batch_size=4"),
            "--jit_compile=on",
        ),
        rate=after_warm_up(4, 0.0625, steps_of_ten(0.0625, STEPS - 4)),
        optimizer=lambda rates: AdamW(rates, weight_decay=0.5),
    ),
    "smoothed labels, in micro-batches": Case(
        flags=(
            *(
                "--optimizer=sgd",
                "--learning_rate=0.25",
                "--set=optimizer.label_smoothing=0.3",
            ),
            "--gradient_accumulation_steps=2",
        ),
        rate=constant(0.25),
        optimizer=SGD,
        kind="mlp",
        label_smoothing=0.3,
    ),
    "sgd of an embedding, in micro-batches": Case(
        flags=(
            *("--optimizer=sgd", "--learning_rate=0.25"),
            "--gradient_accumulation_steps=3",
        ),
        rate=constant(0.25),
        optimizer=SGD,
        kind="categories",
    ),
    "adagrad of an embedding": Case(
        flags=("--optimizer=adagrad", "--learning_rate=0.25"),
        rate=constant(0.25),
        optimizer=Adagrad,
        kind="categories",
    ),
    "adagrad of an embedding as a whole": Case(
        flags=(
            "--optimizer=adagrad",
            "--learning_rate=0.25",
            "--set=optimizer.sparse_gradients=false",
        ),
        rate=constant(0.25),
        optimizer=Adagrad,
        kind="categories",
    ),
    "momentum of an embedding with decay": Case(
        flags=("--optimizer=momentum", "--learning_rate=0.125", "--weight_decay=0.25"),
        rate=constant(0.125),
        optimizer=lambda rates: SGD(rates, momentum=0.9, weight_decay=0.25),
        kind="categories",
    ),
    "adam of an embedding": Case(
        flags=("--optimizer=adam", "--learning_rate=0.03125"),
        rate=constant(0.03125),
        optimizer=Adam,
        kind="categories",
    ),
}
