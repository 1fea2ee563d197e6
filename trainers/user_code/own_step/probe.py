"""A look at what a model's own steps do, on a few examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis import flat_layers
from strategies.common.types import Batch
from trainers.model.rng import keyed_states, seed_states
from trainers.model.train_step import regularized_weights
from trainers.user_code.independence import agree
from trainers.user_code.own_step.model_step import (
    ModelStep,
    OwnMetric,
    all_metrics,
    flat_logs,
    results_noted,
)
from trainers.user_code.own_step.objective import OwnStep, OwnUpdate
from trainers.user_code.own_step.update_catcher import CaughtUpdate


def own_step(model: keras.Model, few: Batch, evaluates: bool) -> OwnStep:
    """Returns the objective of a model that trains or evaluates by itself.

    Args:
      model: Compiled model, whose variables belong to this process.
      few: A few examples.
      evaluates: True if there are examples to evaluate on.

    Raises:
      UsageError: The model updates weights by other means than an optimizer, or one of
        its metrics is no sum over examples or batches.
    """
    _build(model, few)
    train, seen = _probed(model, "train_step", few)
    _check_updates(model, seen)
    test = _probed(model, "test_step", few)[0] if evaluates else None
    updates = [OwnUpdate(update.optimizer, update.variables) for update in seen.updates]
    return OwnStep(
        train=train,
        test=test,
        is_sum=_are_sums(seen.gradients) and not _are_means(seen.gradients),
        updates=updates,
        num_passes=len(updates) + (seen.reads_after == len(updates)),
        remark=_remark(train, seen),
    )


def _remark(step: ModelStep, seen: _Seen) -> str | None:
    """Returns a warning if a step does not divide into shards.

    Without random numbers, and without layers that normalize over a batch, the gradient
    of a batch is the mean or the sum of the gradients of its halves.
    """
    alone = seen.gradients[1]
    is_random = not (agree(seen.doubled, alone) or agree(seen.doubled, 2 * alone))
    is_linear = _are_means(seen.gradients) or _are_sums(seen.gradients)
    normalizes = any(
        isinstance(layer, keras.layers.BatchNormalization)
        for layer in flat_layers(step.model)
    )
    if is_random or normalizes:
        return None
    title = f"{type(step.model).__name__}.train_step"
    if not is_linear:
        return (
            f"{title}: the gradient of a batch is neither the mean nor the sum of its "
            "halves' gradients. Its loss is no mean over examples, or gradients are "
            "clipped before the optimizer gets them (let it clip: clipnorm, "
            "global_clipnorm, clipvalue). Replicas compute it of their shards, so that "
            "their number matters"
        )
    names = [
        own.metric.name
        for own, changes in zip(
            step.metrics, zip(*seen.changes, strict=True), strict=True
        )
        if own.is_per_batch and not all(map(_are_means, _by_variable(changes)))
    ]
    if not names:
        return None
    return (
        f"{title}: {', '.join(names)} of a batch is no mean over its examples: what is "
        "reported is the mean of the replicas' values"
    )


def _build(model: keras.Model, few: Batch) -> None:
    """Makes the variables of layers, metrics and optimizers as `fit` does.

    `fit` makes them when it traces its first step; nothing is computed or updated.
    """
    step = ModelStep(model=model, name="train_step", metrics=[])
    # Outside of an `UpdateCatcher` optimizers are built with the variables they update.
    tf.function(lambda: step.call(few), autograph=False).get_concrete_function()


class _Seen(NamedTuple):
    """Observations of a method, with some examples and with each half of them.

    Attributes:
      updates: Calls of optimizers.
      reads_after: See `UpdateCatcher`.
      written: Paths of trainable variables that were assigned.
      gradients: A number of each gradient, for all examples and each half, float64
        [3, n].
      doubled: The same for the first half given twice, float64 [n].
      changes: For all examples and each half: changes of the metrics' variables.
    """

    updates: Sequence[CaughtUpdate]
    reads_after: int
    written: Sequence[str]
    gradients: np.ndarray
    doubled: np.ndarray
    changes: Sequence[Sequence[Sequence[np.ndarray]]]


def _probed(model: keras.Model, name: str, few: Batch) -> tuple[ModelStep, _Seen]:
    """Returns a step with its logs and metrics, and the observations."""
    step = ModelStep(model=model, name=name, metrics=_metrics_of(model))
    seen, sources = _observe(step, few)
    metrics = [
        dataclasses.replace(own, is_per_batch=_is_per_batch(own, changes))
        for own, changes in zip(
            step.metrics, zip(*seen.changes, strict=True), strict=True
        )
    ]
    return dataclasses.replace(step, metrics=metrics, sources=sources), seen


def _metrics_of(model: keras.Model) -> Sequence[OwnMetric]:
    """Returns all metrics of a model, with their variables as before any example."""
    found = []
    for metric in all_metrics(model):
        metric.reset_state()
        initial = [variable.numpy() for variable in metric.variables]
        found.append(OwnMetric(metric=metric, initial=initial))
    return found


def _observe(step: ModelStep, few: Batch) -> tuple[_Seen, dict[str, Any]]:
    """Runs a step on some examples and on halves of them; nothing is changed."""
    # All examples, each half of them, and the first half twice: these tell apart what
    # more examples add to a mean, to a sum, and where random numbers are drawn.
    half = max(tf.nest.flatten(few.features)[0].shape[0] // 2, 1)
    halves = [range(half), range(half, 2 * half)]
    if tf.nest.flatten(few.features)[0].shape[0] == 1:
        halves = [range(1)]
    whole = [row for rows in halves for row in rows]
    parts = [whole, *halves, [*halves[0], *halves[0]]]
    kept: list[Any] = []

    def run(batch: Batch) -> Any:
        states = seed_states(step.model)
        keyed = keyed_states(states, 0, batch)
        with results_noted(step.metrics) as noted:
            scope, logs = step.run(batch, [*keyed, *regularized_weights(step.model)])
            results = flat_logs(step.model.get_metrics_result(), step.name)
        # At the end of an epoch Keras prefers the results of metrics with the same
        # names (keras/src/trainers/trainer.py, `_get_metrics_result_or_logs`).
        reported = results if results.keys() == logs.keys() else logs
        sources = {name: noted.get(id(value)) for name, value in reported.items()}
        kept[:] = [scope, sources]
        return step.changes(scope), [_sums(update) for update in scope.updates]

    # In a graph, as fit runs it: a step may use what eager tensors do not have.
    traced = tf.function(run, autograph=False)
    outputs = [traced(_rows(few, rows)) for rows in parts]
    scope, sources = kept
    changes, gradients = zip(*outputs, strict=True)
    *sums, doubled = (tf.nest.flatten(one) for one in gradients)
    trained = step.model.trainable_variables
    seen = _Seen(
        updates=scope.updates,
        reads_after=scope.reads_after,
        written=[v.path for v in trained if scope.was_assigned(v)],
        gradients=np.array(sums, np.float64),
        doubled=np.array(doubled, np.float64),
        changes=tf.nest.map_structure(lambda one: one.numpy(), list(changes[:-1])),
    )
    return seen, sources


def _sums(update: CaughtUpdate) -> list[tf.Tensor]:
    dense = [
        tf.convert_to_tensor(g) for g in update.gradients.values() if g is not None
    ]
    return [_number_of(tf.cast(gradient, tf.float64)) for gradient in dense]


def _number_of(values: tf.Tensor) -> tf.Tensor:
    """Returns a weighted sum: the plain sum of a gradient is often zero."""
    flat = tf.reshape(values, [-1])
    places = tf.cast(tf.range(tf.size(flat)), tf.float64)
    return tf.tensordot(flat, tf.cos(places), 1)


def _rows(few: Batch, rows: Sequence[int]) -> Batch:
    size = tf.constant(len(rows), tf.int64)
    features, labels = tf.nest.map_structure(
        lambda value: tf.gather(value, list(rows)), (few.features, few.labels)
    )
    return few._replace(
        features=features,
        labels=labels,
        indices=tf.gather(few.indices, list(rows)),
        global_size=size,
        num_rows=size,
    )


def _are_sums(parts: np.ndarray) -> bool:
    """Returns whether numbers of all examples are the sum of each one's."""
    return agree(parts[0], np.sum(parts[1:], axis=0))


def _are_means(parts: np.ndarray) -> bool:
    return agree(parts[0], np.mean(parts[1:], axis=0))


def _is_per_batch(own: OwnMetric, changes: Sequence[Sequence[np.ndarray]]) -> bool:
    """Returns whether a metric counts batches; False if it counts examples.

    Args:
      own: Metric of the model.
      changes: For all examples and each half: changes of the metric's variables.

    Raises:
      UsageError: It does neither.
    """
    by_variable = _by_variable(changes)
    # Of a random loss only the count can be compared, the last variable of a mean.
    decisive = by_variable[-1:] if isinstance(own.metric, _MEANS) else by_variable
    # Sums first: a metric that has not been updated is both.
    if all(map(_are_sums, decisive)):
        return False
    if all(map(_are_means, decisive)):
        return True
    raise UsageError(
        f"the metric {own.metric.name!r} keeps numbers that are not sums over "
        "examples, so that replicas cannot add theirs: leave it out, and use it on the "
        "trained model."
    )


def _by_variable(changes: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Returns a metric's changes by variable: of all examples, and of each half."""
    return [np.array(parts) for parts in zip(*changes, strict=True)]


_MEANS = (keras.metrics.Mean, keras.metrics.Sum)


def _check_updates(model: keras.Model, seen: _Seen) -> None:
    """Refuses a `train_step` whose updates replicas cannot share.

    Raises:
      UsageError: It calls no optimizer, or assigns weights that are trained.
    """
    title = f"{type(model).__name__}.train_step"
    if not seen.updates:
        raise UsageError(
            f"{title} hands no gradients to an optimizer: call its apply_gradients."
        )
    if seen.written:
        raise UsageError(
            f"{title} assigns {seen.written[0]!r}, which is trained, without an "
            "optimizer: replicas would differ; make it trainable=False, or update it "
            "by an optimizer."
        )
