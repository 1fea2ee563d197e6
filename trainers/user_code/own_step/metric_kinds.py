"""Kinds of metrics of a model's own step: by examples, by batches, by combinations."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np

from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import (
    means_of_output_losses,
    metrics_by_output,
)
from strategies.common.private_apis.models import is_of_keras
from strategies.common.types import Batch
from trainers.user_code.counting_metric import check_state, not_sums, total_of
from trainers.user_code.halves import are_close_means, are_means, are_sums
from trainers.user_code.independence import agree
from trainers.user_code.own_step.model_step import ModelStep, OwnMetric
from trainers.user_code.own_step.observation import Observed, observe
from trainers.user_code.probe import probe
from trainers.user_code.state_remark import normalizes_batches


def kinds_of_metrics(
    step: ModelStep, seen: Observed, of_twice: Observed, few: Batch
) -> Sequence[OwnMetric]:
    """Returns the metrics of a step with what they count.

    Args:
      step: Step that updates the metrics.
      seen: Observations of the step on `few`.
      of_twice: The same on a batch of which each half has all examples, if halves of
        `few` have other moments.
      few: A few examples.

    Raises:
      UsageError: A metric does not add up over batches, or keeps a state for longer
        than an epoch.
    """
    by_batch = [
        _counting_batches(step.model, own, seen, changes)
        for own, changes in zip(step.metrics, seen.changes, strict=True)
    ]
    _check_sums(step, by_batch, seen, few)
    return [
        dataclasses.replace(
            own,
            counting_batches=counts or (),
            combines=counts is None,
            gets_sums=_gets_sums(own, changes),
        )
        for own, counts, changes in zip(
            step.metrics, by_batch, of_twice.changes, strict=True
        )
    ]


def _counting_batches(
    model: keras.Model, own: OwnMetric, seen: Observed, changes: Sequence[np.ndarray]
) -> Collection[int] | None:
    """Returns which variables of a metric count batches, and not examples.

    None if one counts neither.
    """
    if any(own.metric is mean for mean in means_of_output_losses(model)):
        return range(len(changes))
    # Of a random loss only the count can be compared, which is the last variable of a
    # mean. A sum has a single variable.
    is_mean = isinstance(own.metric, (keras.metrics.Mean, keras.metrics.Sum))
    decisive = changes[-1:] if is_mean else changes
    is_exact = seen.is_repeatable and seen.draws_for_examples and not seen.normalizes
    # Sums first: a metric that has not been updated is both.
    if all(map(are_sums, decisive)):
        return () if not is_exact or all(map(are_sums, changes)) else None
    if all(map(are_means, decisive)):
        return range(len(changes))
    if normalizes_batches(model) and is_of_keras(own.metric):
        # What it counts, such as AUC, are predictions that differ in a half of a batch.
        return ()
    of_batches = [index for index, one in enumerate(changes) if not are_sums(one)]
    return (
        of_batches if all(are_means(changes[index]) for index in of_batches) else None
    )


def _check_sums(
    step: ModelStep,
    by_batch: Sequence[Collection[int] | None],
    seen: Observed,
    few: Batch,
) -> None:
    """Checks that metrics begin anew in each epoch, and that batches add to them.

    Metrics of the user's class, and metrics that count neither examples nor batches,
    have to change after a batch as much as before it. A maximum and a moving average do
    not.

    Args:
      step: Step that updates the metrics.
      by_batch: Result of `_counting_batches` for each metric.
      seen: Observations of the step.
      few: Batch on which the step was observed.

    Raises:
      UsageError: A metric does not add up, or does not begin anew.
    """
    later = [
        dataclasses.replace(own, initial=_state_after(own, changes))
        for own, changes in zip(step.metrics, seen.changes, strict=True)
    ]
    for own, after in zip(step.metrics, later, strict=True):
        check_state(own.metric, own.initial, after.initial)
    is_doubtful = [
        counts is None or (seen.is_repeatable and _has_own_update(own.metric))
        for own, counts in zip(step.metrics, by_batch, strict=True)
    ]
    if not any(is_doubtful):
        return
    later_step = dataclasses.replace(step, metrics=later)
    again = observe(later_step, few, seen.is_divisible)
    for own, doubtful, *both in zip(
        step.metrics, is_doubtful, seen.changes, again.changes, strict=True
    ):
        adds_up = all(agree(one[0], other[0]) for one, other in zip(*both, strict=True))
        if doubtful and not adds_up:
            of_output = compared_by(step.model, own.metric, few)
            raise UsageError(not_sums(own.metric.name, *of_output))


def _has_own_update(metric: keras.metrics.Metric) -> bool:
    return not type(metric).update_state.__module__.startswith("keras.")


def _state_after(own: OwnMetric, changes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the values of a metric's variables after a batch, from their changes."""
    return [
        total_of(old, change[0], variable).numpy()
        for variable, old, change in zip(
            own.metric.variables, own.initial, changes, strict=True
        )
    ]


def _gets_sums(own: OwnMetric, changes: Sequence[np.ndarray]) -> bool:
    """Returns whether a metric averages sums over a batch, and not means."""
    if not isinstance(own.metric, keras.metrics.Mean):
        return False
    total, count = changes
    if not np.all(count):
        return False
    return are_sums(total / count) and not are_means(total / count)


def gets_means(own: OwnMetric, changes: Sequence[np.ndarray], rounding: float) -> bool:
    """Returns whether a metric counts means over the examples of a batch."""
    if isinstance(own.metric, keras.metrics.Mean):
        total, count = changes
        # That of an output's loss weighs by rows in the probe, and not in `fit`.
        return not np.all(count) or are_close_means(total / count, rounding)
    return all(are_close_means(one, rounding) for one in changes)


def compared_by(
    model: keras.Model, metric: keras.metrics.Metric, few: Batch
) -> tuple[Any, ...]:
    """Returns the labels and predictions that a compiled metric gets; () for another.

    A model with its own step may have no outputs that are predictions of labels.
    """
    try:
        labels, predictions, _ = probe(model, few)
        compiled = metrics_by_output(None, None, None, labels, predictions, model)
    # The message does without the shapes then.
    except Exception:
        return ()
    return next(
        (
            one.of_output(labels, predictions)
            for one in compiled
            if one.metric is metric
        ),
        (),
    )
