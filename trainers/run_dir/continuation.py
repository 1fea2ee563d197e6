"""Settings that a resumed run cannot change."""

from __future__ import annotations

import dataclasses
import pathlib

from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from trainers.config.config import Config
from trainers.config.data import DataConfig
from trainers.config.groups import option
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig

# They determine the training.
_FIXED = ["seed", "global_batch_size", "gradient_reduction"] + [
    field.name
    for group in (ModelConfig, DataConfig, OptimizerConfig)
    for field in dataclasses.fields(group)
]

# Also fixed if the learning rate schedule is not constant, because it depends on the
# last step.
_FIXED_WITH_A_SCHEDULE = ["train_steps", "epochs"]


def check_same_training(path: pathlib.Path, before: Config, config: Config) -> None:
    """Checks that a resumed run trains as it did.

    Args:
      path: Folder of the run, for the message.
      before: Configuration in the folder.
      config: Configuration to continue with.

    Raises:
      UsageError: Settings that determine the training differ.
    """
    was, now = before.to_dict(), config.to_dict()
    has_schedule = config.optimizer.learning_rate_schedule != "constant"
    fixed = _FIXED + (_FIXED_WITH_A_SCHEDULE if has_schedule else [])
    if config.model.script is not None:
        # The program decides the others, and config.json has what it decided.
        fixed = [n for n in fixed if n in config.given or n.startswith("script")]
    differences = ", ".join(
        f"{option(name)}={as_argument(now[name])} (was {as_argument(was[name])})"
        for name in fixed
        if was[name] != now[name]
        # The run's own decision is kept (`RunDir.with_decisions`).
        and (name, now[name]) != ("jit_compile", "auto")
    )
    if differences:
        raise UsageError(
            f"--resume=auto cannot continue {path} with {differences}: use the run's "
            "own settings, or another --run_dir."
        )
