"""The arms of a verification and their reference."""

import dataclasses

from trainers.config.config import Config
from trainers.experiments.arms import (
    Arm,
    expand_update_modes,
    keras_arm,
    of_a_short_run,
    under,
)

ONE_DEVICE = "one_device"

# Every step is recorded with all its gradients and weights.
_DEFAULT_TRAIN_STEPS = 20


def reference_of(config: Config) -> Arm:
    """Returns the training on one device that all arms must agree with.

    It computes every global batch at once, so that micro-batches are verified too. A
    program's is Keras's own `fit`.

    Raises:
      UsageError: The settings do not fit the reference.
    """
    shared = _brief(config.replace(gradient_accumulation_steps=1))
    arm = Arm(name=ONE_DEVICE, config=under(ONE_DEVICE, shared))
    if config.model.script is not None:
        arm = keras_arm(shared)
    return dataclasses.replace(arm, config=arm.config.replace(record_steps=True))


def subjects_of(config: Config) -> tuple[Arm, ...]:
    """Returns the arms to verify, in the order of --strategies.

    A strategy with several update modes is verified in each of them, unless --update
    selects one. Steps are recorded only if they can be compared one by one.

    Raises:
      UsageError: The settings do not fit a strategy.
    """
    shared = _brief(config)
    arms = expand_update_modes(config, shared)
    names = [arm.name for arm in arms]
    if config.model.script is not None and ONE_DEVICE not in names:
        # What it shares with Keras is not the fault of a strategy.
        first = Arm(name=ONE_DEVICE, config=under(ONE_DEVICE, shared))
        arms = (first, *arms)
    return tuple(_recorded_if_comparable(arm) for arm in arms)


def is_comparable(config: Config) -> bool:
    """Returns whether the steps of a configuration equal the steps of one device.

    They differ if some gradients are stale or dropped, or if global batches hold other
    examples. Gradients that are only rounded on the wire are compared: how far they
    change the training is a question that verification answers.
    """
    strategy = config.strategy
    if strategy.is_synchronous:
        return config.replace(all_reduce_dtype="as_is").traits.matches_one_device
    # A single asynchronous replica has no stale gradients.
    return not strategy.has_stale_gradients


def _recorded_if_comparable(arm: Arm) -> Arm:
    """Returns an arm that records its steps if they can be compared.

    Recording waits for every step, and would hide how stale gradients are.
    """
    recorded = is_comparable(arm.config)
    return Arm(name=arm.name, config=arm.config.replace(record_steps=recorded))


def _brief(config: Config) -> Config:
    """Returns the settings that all runs share, without optional work."""
    shared = of_a_short_run(config, _DEFAULT_TRAIN_STEPS).replace(record_steps=False)
    if shared.model.script is None:
        return shared
    # Programs often augment, drop or sample.
    return shared.replace(replayable_random_numbers=True)
