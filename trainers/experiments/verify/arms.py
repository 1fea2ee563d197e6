"""What is verified: strategies, each way of updating by itself, and what with."""

from __future__ import annotations

from trainers.config.config import Config
from trainers.experiments.arms import Arm, in_each_way_of_updating, of_a_run, under

REFERENCE = "one_device"

_DEFAULT_TRAIN_STEPS = 20


def reference_of(config: Config) -> Arm:
    """Training on one device, which all others are to agree with.

    It takes every global batch at once, so that micro-batches are verified, too.

    Raises:
      UsageError: the settings do not fit it.
    """
    shared = _brief(config.replace(gradient_accumulation_steps=1))
    return Arm(
        name=REFERENCE, config=under(REFERENCE, shared).replace(record_steps=True)
    )


def subjects_of(config: Config) -> tuple[Arm, ...]:
    """What --strategies asks for, in this order.

    A strategy that can update in several ways is verified in each of them, unless
    --update says in which. What cannot be compared step by step is not recorded.

    Raises:
      UsageError: the settings do not fit a strategy.
    """
    arms = in_each_way_of_updating(config, _brief(config))
    return tuple(_recorded_if_comparable(arm) for arm in arms)


def is_comparable(config: Config) -> bool:
    """Whether its steps are those of one device.

    They are not if some gradients are of older weights, or are left out, or if global
    batches hold other examples.
    """
    strategy = config.strategy
    if strategy.is_synchronous:
        return config.traits.matches_one_device
    return not strategy.has_stale_gradients


def _recorded_if_comparable(arm: Arm) -> Arm:
    """Recording waits for every step, and would hide how stale gradients are."""
    recorded = is_comparable(arm.config)
    return Arm(name=arm.name, config=arm.config.replace(record_steps=recorded))


def _brief(config: Config) -> Config:
    """What all runs share, with nothing that takes time."""
    shared = of_a_run(config)
    shared = shared.replace(
        record_steps=False,
        histogram_every_steps=None,
        eval_every_steps=shared.report.eval_every_steps or None,
    )
    if shared.length.train_steps is None and shared.length.epochs is None:
        shared = shared.replace(train_steps=_DEFAULT_TRAIN_STEPS)
    return shared
