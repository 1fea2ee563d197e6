"""Check of the settings beside --script, whose program decides most of them."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from strategies.common.errors import UsageError
from strategies.common.text import as_argument, shown
from trainers.config.data import DataConfig
from trainers.config.groups import defaults_of, option

if TYPE_CHECKING:
    from trainers.config.config import Config

# A program decides these, and a flag does not.
_DECIDED_BY_PROGRAM = (
    *defaults_of(DataConfig),
    "model", "initial_weights", "callbacks", "loss", "metrics", "hidden_units",
    "embedding_dimension", "embedding_shards", "dropout", "label_smoothing",
    "eval_every_steps", "eval_global_batch_size",
)  # fmt: skip
# The training loop has these, and Keras's own `fit` does not.
_UNKNOWN_TO_KERAS_FIT = (
    "optimizer", "clip_global_norm", "gradient_reduction", "jit_compile",
    "gradient_accumulation_steps",
)  # fmt: skip
_MODES = ("train", "verify", "compare", "explain", "predict")
# Settings of the optimizer that --optimizer puts in place of the program's.
_OPTIMIZER_SETTINGS = (
    "lr_scaling", "base_global_batch_size", "learning_rate_schedule", "warmup_steps",
    "momentum", "weight_decay",
)  # fmt: skip
_ALL_OPTIMIZER_SETTINGS = ("learning_rate", *_OPTIMIZER_SETTINGS)
# A program decides these where they are not given.
DECIDED_UNLESS_GIVEN = (
    "optimizer", *_ALL_OPTIMIZER_SETTINGS, "dtype", "global_batch_size",
    "eval_global_batch_size", "train_steps", "epochs",
)  # fmt: skip
THE_PROGRAMS = "the program's"
# Folder of a call of `trainers.fit`, a temporary one for each call.
SENT_PREFIX = "keras_fit_"


def is_sent_call(script: str | None) -> bool:
    """Returns whether a program is a call of `trainers.fit` in another process."""
    parts = pathlib.Path(script or "").parts
    return len(parts) > 2 and parts[-3].startswith(SENT_PREFIX)


def is_left_to_program(name: str, config: Config) -> bool:
    """Returns whether a run's program decides a setting, which nobody has given."""
    if config.model.script is None or name in config.given:
        return False
    # --optimizer comes with all of its settings, by default too.
    is_replaced = "optimizer" in config.given and name in _ALL_OPTIMIZER_SETTINGS
    return name in DECIDED_UNLESS_GIVEN and not is_replaced


def value_in_words(name: str, config: Config) -> str:
    """Returns the value of a setting as an argument, or that the program decides it."""
    if is_left_to_program(name, config):
        return THE_PROGRAMS
    return as_argument(config.to_dict()[name])


def batch_in_words(config: Config, is_stream: bool) -> str:
    """Returns the global batch by the flag or argument that decided its size.

    The batches of a stream are the program's, in its data.
    """
    size = config.length.global_batch_size
    if not is_left_to_program("global_batch_size", config):
        return f"--global_batch_size={size}"
    if is_stream:
        return f"the batch of {size} in the program's data"
    return f"the program's fit(batch_size={size})"


def changes_keras_fit(config: Config) -> str | None:
    """Returns a given setting that Keras's own `fit` does not have; None without."""
    return next((name for name in _UNKNOWN_TO_KERAS_FIT if name in config.given), None)


def check_program(config: Config) -> None:
    """Refuses settings that a program decides, and arguments without a program.

    Raises:
      UsageError: A setting or an argument does not fit; the message names the first.
    """
    if config.model.keras_fit and (
        config.model.script is None or config.strategy.traits.is_distributed
    ):
        raise UsageError(
            "--set=model.keras_fit=true is for --script on one device: add "
            "--strategy=one_device, or leave it out."
        )
    changed = changes_keras_fit(config)
    if config.model.keras_fit and changed:
        raise UsageError(
            f"{option(changed)} does not fit Keras's own fit, which the program of "
            f"--script={config.model.script} is compared with: change the program."
        )
    if config.model.callbacks is not None and "eval_every_steps" in config.given:
        raise UsageError(
            f"--eval_every_steps does not fit --callbacks={config.model.callbacks}, "
            "with which every epoch is evaluated: leave one of them out."
        )
    if config.model.script is None:
        if config.model.script_arguments:
            words = " ".join(config.model.script_arguments)
            raise UsageError(
                f"-- {shown(words)} are arguments for a program, and there is none: "
                "add --script=train.py, or leave them out."
            )
        return
    if config.run.mode not in _MODES:
        raise UsageError(
            f"--script={config.model.script} does not fit --mode={config.run.mode}: "
            f"choose {', '.join(_MODES)}; --train_steps=1 tries out a program."
        )
    refused = list(_DECIDED_BY_PROGRAM)
    if "optimizer" not in config.given:
        refused += _OPTIMIZER_SETTINGS
    for name in refused:
        if name in config.given:
            raise UsageError(
                f"{option(name)} is decided by the program of "
                f"--script={config.model.script}: change it there."
            )
    if config.strategy.traits.is_model_parallel:
        raise UsageError(
            f"--strategy={config.strategy.strategy} does not fit --script, whose model "
            "is made before its stages are known: choose another strategy."
        )
