"""Settings that a resumed run cannot change."""

import pathlib

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.config.data import DataConfig
from trainers.config.groups import defaults_of, option
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.config.program import is_left_to_program, is_sent_call, value_in_words
from trainers.run_dir.run_dir import RunDir

# They determine the training.
_FIXED = (
    "seed", "global_batch_size", "drop_last_batch", "gradient_reduction",
    *defaults_of(ModelConfig, DataConfig, OptimizerConfig),
)  # fmt: skip

# Also fixed if the learning rate schedule is not constant, because it depends on the
# last step.
_LENGTH = ("train_steps", "epochs")


def check_same_training(path: pathlib.Path, before: Config, config: Config) -> None:
    """Checks that a resumed run trains as it did.

    Raises:
      UsageError: Settings that determine the training differ.
    """
    was, now = before.to_dict(), config.to_dict()
    has_schedule = config.optimizer.learning_rate_schedule != "constant"
    fixed = [*_FIXED, *(_LENGTH if has_schedule else ())]
    if config.model.script is not None:
        # The program decides the others, and config.json has what it decided.
        given = before.given | config.given
        fixed = [n for n in fixed if n in given or n.startswith("script")]
        if is_sent_call(before.model.script) and is_sent_call(config.model.script):
            # Each is sent in another folder. Weights that do not fit are refused.
            fixed.remove("script")
    differences = ", ".join(
        f"{option(name)}={value_in_words(name, config)} "
        f"(was {value_in_words(name, before)})"
        for name in fixed
        if (was[name] != now[name] or _is_given_to_one(name, before, config))
        # The run's own decision is kept (`TrainingDir.with_decisions`).
        and (name, now[name]) != ("jit_compile", "auto")
    )
    if differences:
        raise UsageError(
            f"--resume=auto cannot continue {path} with {differences}: use the run's "
            f"own settings (--config={path / 'config.json'}), or another --run_dir."
        )
    _check_length(path, before, config)


def check_enough_steps(path: pathlib.Path, step: int, last_step: int) -> None:
    """Checks that a resumed run does not end before its checkpoint.

    Raises:
      UsageError: The run has more steps already.
    """
    if step > last_step:
        raise UsageError(
            f"{path} has done {step:,} steps, and would end at step {last_step:,}: "
            "raise --train_steps or --epochs, or choose another --run_dir."
        )


def check_same_phases(
    folder: RunDir,
    phase: int,
    began: int | None,
    first_step: int,
    ended: int | None,
    last_step: int,
) -> None:
    """Checks that the `fit`s of a resumed program begin at the steps of before.

    Otherwise the next `fit` would load weights that follow another training than this
    one.

    Args:
      folder: Folder of the run.
      phase: Number of the `fit`, from 1.
      began: Step from which it began before; None if no checkpoint says so.
      first_step: Step from which it begins now.
      ended: Step at which it was over before; None if it was not, as when a callback
        has raised an error.
      last_step: Step at which it ends now, which is `ended` if a callback stopped it.

    Raises:
      UsageError: An earlier `fit`, or this one, is longer or shorter than before.
    """
    if began not in (None, first_step):
        raise _moved(folder, phase, began, first_step)
    next_began = folder.first_step_of(phase + 1)
    if next_began is None or ended is None:
        return
    # The next `fit` has begun where this one was over, which now goes on beyond.
    if next_began <= ended < last_step:
        raise _moved(folder, phase + 1, next_began, last_step)


def _moved(folder: RunDir, phase: int, began: int | None, end: int) -> UsageError:
    """Returns the error for a `fit` that would not begin where it began before."""
    return UsageError(
        f"--resume=auto cannot continue {folder.path}: fit number {phase} of the "
        f"program began at step {began:,}, and those before it would end at step "
        f"{end:,}: leave their length as it was, or choose another --run_dir."
    )


def _check_length(path: pathlib.Path, before: Config, config: Config) -> None:
    """Refuses the default length for a run that was begun with another.

    The run would end at that step, perhaps at once, and count as completed.
    """
    was, now = before.to_dict(), config.to_dict()
    if config.model.script is not None or any(now[name] for name in _LENGTH):
        return
    for name in _LENGTH:
        if was[name]:
            length = f"{option(name)}={was[name]}"
            raise UsageError(
                f"--resume=auto continues {path}, a run of {length}, and no length is "
                f"given: add {length}, or another number."
            )


def _is_given_to_one(name: str, before: Config, config: Config) -> bool:
    """Returns whether the program decides a setting in only one of two runs.

    config.json has the batch size that the program has chosen, but not its optimizer.
    """
    # Without --script in it, an older version has written the file.
    if name == "global_batch_size" or "script" not in before.given:
        return False
    return is_left_to_program(name, before) != is_left_to_program(name, config)
