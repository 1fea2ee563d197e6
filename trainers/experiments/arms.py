"""Arms of an experiment: names with their configurations."""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.text import shown
from trainers.cli import flags
from trainers.config.comparison import ComparisonConfig
from trainers.config.config import Config
from trainers.config.groups import all_fields, defaults_of
from trainers.config.prediction import PredictionConfig
from trainers.config.program import (
    THE_PROGRAMS,
    changes_keras_fit,
    is_left_to_program,
)
from trainers.config.used_settings import check_used_by_one, unused

KERAS = "keras"

# An arm's name becomes the name of a folder, a part of a flag and a line of a table.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train.

    Attributes:
      name: Name of the arm, unique in a comparison.
      config: Configuration of every run of the arm; each run sets its seed and folder.
    """

    name: str
    config: Config


def arms_of(config: Config) -> tuple[Arm, ...]:
    """Returns the arms that --strategies and --arm ask for, in this order.

    Raises:
      UsageError: The flags of an arm are invalid, there is only one arm, or two arms
        have the same name.
    """
    shared = of_a_run(config)
    arms = [
        Arm(name=strategy, config=under(strategy, shared))
        for strategy in config.comparison.strategies or ()
    ]
    arms += [_from_flags(text, shared) for text in config.comparison.arm or ()]
    if config.model.script is not None and arms and not changes_keras_fit(config):
        # A program is compared with what it is without this project.
        arms.insert(0, keras_arm(shared))
    check_names([arm.name for arm in arms])
    check_used_by_one(shared.to_dict(), [arm.config.to_dict() for arm in arms])
    return tuple(arms)


def keras_arm(shared: Config) -> Arm:
    """Returns the training of a program by Keras's own `fit`, on one device.

    Raises:
      UsageError: The settings change what `fit` does.
    """
    # The configuration refuses settings that Keras's own loop does not have.
    return Arm(name=KERAS, config=under("one_device", shared).replace(keras_fit=True))


def check_names(names: Sequence[str]) -> None:
    """Raises UsageError if there are fewer than two names, or if two are equal."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two arms are called {twice!r}: give each its own name.")
    if len(names) < 2:
        raise UsageError(
            f"there is only one arm, {''.join(names)!r}, and nothing to compare it "
            "with: add a strategy to --strategies, another --arm, or another run."
        )


def check_name(name: str, flag: str) -> None:
    """Raises UsageError if a name cannot be the name of a folder."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{flag} is not accepted: the name {shown(name)!r} before the colon takes "
            "up to 40 letters, digits, dots, hyphens and underscores."
        )


def of_a_run(config: Config) -> Config:
    """Returns the settings that all arms share, in the form of a training run.

    The settings of comparison and prediction return to their defaults.
    """
    of_no_use = defaults_of(ComparisonConfig, PredictionConfig)
    return config.replace(
        mode="train", run_dir=None, resume="never", verbose=False, **of_no_use
    )


def of_a_short_run(config: Config, default_train_steps: int) -> Config:
    """Returns settings as `of_a_run` does, without work that is not of the steps.

    A program decides when it validates.
    """
    shared = of_a_run(config).replace(histogram_every_steps=None)
    if shared.model.script is None:
        every = shared.report.eval_every_steps or None
        shared = shared.replace(eval_every_steps=every, final_evaluation=False)
    if shared.length.train_steps is None and shared.length.epochs is None:
        shared = shared.replace(train_steps=default_train_steps)
    return shared


def settings_in_effect(config: Config) -> dict[str, Any]:
    """Returns all settings by name, with words for what a program decides."""
    return {
        name: THE_PROGRAMS if is_left_to_program(name, config) else value
        for name, value in config.to_dict().items()
    }


def expand_update_modes(config: Config, shared: Config) -> tuple[Arm, ...]:
    """Returns an arm for each strategy of --strategies and each of its update modes.

    A strategy with several update modes yields one arm per mode, unless --update
    selects the mode.

    Raises:
      UsageError: The settings do not fit a strategy.
    """
    arms = []
    for strategy in config.comparison.strategies or ():
        updates = registry.traits(strategy).updates
        if updates and shared.strategy.update is None:
            arms += [
                Arm(
                    name=f"{strategy}-{update}",
                    config=under(strategy, shared, update=update),
                )
                # "sync" comes before "async".
                for update in sorted(updates, reverse=True)
            ]
        else:
            arms.append(Arm(name=strategy, config=under(strategy, shared)))
    return tuple(arms)


def _from_flags(text: str, shared: Config) -> Arm:
    flag = f"--arm={shown(text)}"
    name, colon, words = text.partition(":")
    if not colon:
        raise UsageError(
            f"{flag} is not accepted: give it as 'name: flags', such as 'four: "
            "--strategy=mirrored --num_replicas=4'."
        )
    check_name(name, flag)
    try:
        return Arm(name=name, config=flags.parse_arm(shlex.split(words), shared))
    except flags.HelpRequested as error:
        raise UsageError(f"{flag}: --help is not a setting; leave it out.") from error
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    # `shlex` raises ValueError for a quote that is not closed.
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; close the quotes.") from error


def under(strategy: str, shared: Config, **settings: Any) -> Config:
    """Returns the shared settings for a strategy, without settings that it refuses.

    With --num_replicas=4 the arm one_device has one replica, and all others have four.
    `settings` belong to this arm alone and are never left out.

    Raises:
      UsageError: The settings are invalid even without any of strategies and devices.
    """
    own = {"strategy": strategy, **settings}
    given = shared.to_dict()
    of_no_use = {
        name: all_fields()[name][1].default for name in unused(given, {**given, **own})
    }
    try:
        return shared.replace(**{**of_no_use, **own})
    except UsageError as error:
        refusal = error
    for changes in _relaxed_overrides(shared):
        try:
            return shared.replace(**{**of_no_use, **changes, **own})
        except UsageError:
            continue
    # The first error describes the user's own settings, not a reduced form of them.
    raise refusal


def _relaxed_overrides(config: Config) -> Iterator[dict[str, Any]]:
    """Yields overrides that reset progressively more settings of strategy and devices.

    Of several --devices the first is kept before all are dropped, so that the one
    device that others are compared with is of the same kind.
    """
    defaults = {
        field.name: field.default
        for group in (config.strategy, config.device)
        for field in dataclasses.fields(group)
        # Only settings that the user has changed can be the cause of a refusal.
        if field.name != "strategy" and getattr(group, field.name) != field.default
    }
    choice = config.strategy.device_choice
    if choice.num_devices:
        first = {"devices": (choice.first(),)}
        yield first
        yield {**defaults, **first}
    for count in range(1, len(defaults) + 1):
        for names in itertools.combinations(defaults, count):
            yield {name: defaults[name] for name in names}
