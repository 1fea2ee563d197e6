"""A look at what a model's own steps do, on a few examples."""

import dataclasses
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers, trainable_parts
from strategies.common.text import NUMBER_MATTERS
from strategies.common.types import Batch
from trainers.user_code import without_weights
from trainers.user_code.checks import has_own_step
from trainers.user_code.counting_metric import counts_combinations
from trainers.user_code.halves import (
    are_close_means,
    are_means,
    are_sums,
    relative_rounding,
)
from trainers.user_code.own_step.metric_kinds import (
    compared_by,
    gets_means,
    kinds_of_metrics,
)
from trainers.user_code.own_step.model_step import (
    ModelStep,
    OwnMetric,
    as_fit_has_it,
    regularized_weights,
)
from trainers.user_code.own_step.objective import OwnStep, OwnUpdate, passes_of
from trainers.user_code.own_step.observation import (
    Observed,
    compares_examples,
    observe,
    observe_doubled,
)
from trainers.user_code.own_step.reported import all_metrics, remark_on_metrics


def own_step(
    model: keras.Model,
    few: Batch,
    held_out: Batch | None,
    rows: int | None = None,
) -> OwnStep:
    """Returns the objective of a model that trains or evaluates by itself.

    Args:
      model: Compiled model, whose variables belong to this process.
      few: A few examples to train on.
      held_out: A few examples to evaluate on; None for none.
      rows: Only number of examples that the model computes; None if it takes any.

    Raises:
      UsageError: The model's `train_step` calls no optimizer, or one of its metrics is
        no sum over examples or batches.
    """
    _build(model, few)
    train, seen = _probed(model, "train_step", few, rows is None)
    if not seen.is_divisible:
        rows = rows or int(few.num_rows)
    _check_updates(model, seen)
    remarks = [*_remarks(train, seen, few)]
    remarks_of_any = [_remark_of_any(train, seen), remark_on_metrics(train)]
    test = evaluation_remark = None
    if held_out is not None:
        # Its loss is that of the other one.
        divides = train.divides_penalties
        test, tested = _probed(model, "test_step", held_out, rows is None, divides)
        remarks += _remarks(test, tested, held_out)
        remarks_of_any.append(remark_on_metrics(test))
        evaluation_remark = tested.evaluation_remark
    updates = [OwnUpdate(update.optimizer, update.variables) for update in seen.updates]
    passes = passes_of(updates, seen.reads_after)
    if len(passes) > 1 and any(update.is_scaled for update in seen.updates):
        raise UsageError(
            f"{type(model).__name__}.train_step has a LossScaleOptimizer, and is "
            "computed again for each update: where numbers are too large for the scale "
            "of the loss, updates before cannot be taken back. Use mixed_bfloat16 or "
            "float32, which need no scale."
        )
    return OwnStep(
        train=train,
        test=test,
        is_sum=seen.gives_sums,
        has_sparse_gradients=seen.has_sparse_gradients,
        updates=updates,
        passes=passes,
        rows=rows,
        normalizes=seen.normalizes,
        # Compiled metrics are the same ones in both steps.
        remark="; ".join(dict.fromkeys(remarks)) or None,
        remark_of_any="; ".join(filter(None, remarks_of_any)) or None,
        evaluation_remark=evaluation_remark,
    )


def _check_updates(model: keras.Model, seen: Observed) -> None:
    """Refuses a step without updates, or with updates of weights that are not known."""
    if not seen.updates:
        # A step of the class may be without a call of the model, which builds it.
        is_built = model.weights or not has_own_step(model)
        if is_built and not model.trainable_weights:
            raise without_weights(type(model).__name__, model)
        raise UsageError(
            f"{type(model).__name__}.train_step hands no gradients to an optimizer: "
            "call its apply_gradients."
        )
    known = {id(variable) for variable in model.variables}
    for variable in (v for update in seen.updates for v in update.variables):
        if id(variable) not in known:
            # A tf.Variable, which is no weight of a model, has no path.
            name = getattr(variable, "path", variable.name)
            raise UsageError(
                f"{type(model).__name__}.train_step updates {name!r} of shape "
                f"{variable.shape}, which the model does not have, so that replicas "
                "would not train it: make its layer an attribute of the model, and a "
                "tf.Variable a weight (add_weight)."
            )


def _remarks(step: ModelStep, seen: Observed, few: Batch) -> Iterator[str]:
    """Yields warnings if a step, or one of its metrics, does not divide into shards."""
    remark = _remark(step, seen, few)
    # A metric may count predictions, which differ in a half of a normalized batch.
    if not seen.normalizes:
        for own in step.metrics:
            # The remark on gradients is one on the loss.
            if own.combines and not (remark and own.metric.name == "loss"):
                shapes = compared_by(step.model, own.metric, few)
                yield counts_combinations(own.metric.name, *shapes)
    if remark:
        yield remark


def _remark(step: ModelStep, seen: Observed, few: Batch) -> str | None:
    """Returns a warning if a step does not divide into shards.

    Gradients that differ for the same examples show nothing. The run warns elsewhere of
    layers that normalize over a batch.
    """
    if not seen.is_repeatable:
        return None
    # A compiled function of a whole batch is computed by Keras's own step.
    method = step.name if has_own_step(step.model) else "compile"
    title = f"{type(step.model).__name__}.{method}"
    if compares_examples(step, seen, few):
        remark = (
            f"{title}: the gradient of a batch is neither the mean nor the sum of its "
            "halves' gradients. Its loss is no mean over examples (perhaps it compares "
            "them with each other, or divides by a number of the batch, such as that "
            "of its tokens), or gradients are clipped before the optimizer gets them "
            "(let it clip: clipnorm, global_clipnorm, clipvalue). Replicas "
            f"compute it of their shards, {NUMBER_MATTERS}"
        )
        if seen.state_remark and seen.draws_for_examples:
            return f"{remark}; {seen.state_remark}"
        return remark
    if seen.normalizes or not seen.draws_for_examples:
        return None
    rounding = relative_rounding(step.model)
    names = [
        own.metric.name
        for own, changes in zip(step.metrics, seen.changes, strict=True)
        if own.is_per_batch
        and not (own.gets_sums or gets_means(own, changes, rounding))
    ]
    names += [
        name
        for name, parts in seen.numbers.items()
        # Numbers of metrics are computed from their sums.
        if seen.sources[name] is None
        and not (name in step.summed or are_close_means(parts, rounding))
    ]
    if not names:
        return seen.state_remark
    remark = (
        f"{title}: {', '.join(names)} of a batch is no mean over its examples: what is "
        "reported is the mean of the replicas' values"
    )
    return "; ".join(filter(None, [remark, seen.state_remark]))


def _remark_of_any(step: ModelStep, seen: Observed) -> str | None:
    """Returns a warning if a step is another one than in `fit` on one replica, too."""
    if not seen.metrics_used:
        return None
    return (
        f"{type(step.model).__name__}.{step.name} trains or sets a weight by the "
        f"result of {', '.join(seen.metrics_used)}, which in fit is of all steps of "
        "the epoch so far, and here of one step: keep their sum in a weight "
        "(add_weight)"
    )


def _build(model: keras.Model, few: Batch) -> None:
    """Makes the variables of layers, metrics and optimizers as `fit` does.

    `fit` makes them when it traces its first step; nothing is computed or updated.
    Then it traces the step again, with what the first trace left as `trainable`.
    """
    # Outside of an `UpdateCatcher` optimizers are built with the variables they update.
    step = tf.function(lambda: model.train_step(as_fit_has_it(few)), autograph=False)
    step.get_concrete_function()


def _probed(
    model: keras.Model,
    name: str,
    few: Batch,
    is_divisible: bool,
    divides_penalties: bool = False,
) -> tuple[ModelStep, Observed]:
    """Returns a step with its logs and metrics, and the observations.

    A step that fails with a half of the examples is observed without halves.
    """
    step = ModelStep(
        model=model,
        name=name,
        metrics=_metrics_of(model),
        trainable=trainable_parts(model),
        divides_penalties=divides_penalties,
    )
    try:
        seen = observe(step, few, is_divisible)
    except UsageError:
        raise
    # It may count on the size of a batch. Any other error appears again.
    except Exception:
        seen = observe(step, few, is_divisible=False)
    may_be_sum = seen.gives_sums or not (seen.is_linear or seen.normalizes)
    if may_be_sum and _has_penalties(model):
        # A sum over examples beside penalties is neither, or nearly a sum.
        divided = dataclasses.replace(step, divides_penalties=True)
        of_divided = observe(divided, few, seen.is_divisible)
        if of_divided.gives_sums:
            step, seen = divided, of_divided
    combined = seen
    if not seen.is_linear:
        # The examples of a half have other moments, or others to compare them with.
        # Those of a batch that has each example twice mostly have the same.
        combined = observe_doubled(seen, few)
        seen = seen._replace(gives_sums=combined.is_nearly_sum)
    metrics = kinds_of_metrics(step, seen, combined, few)
    summed = [
        name
        for name, parts in combined.numbers.items()
        if are_sums(parts) and not are_means(parts)
    ]
    found = dataclasses.replace(
        step, metrics=metrics, sources=seen.sources, summed=summed
    )
    return found, seen


def _has_penalties(model: keras.Model) -> bool:
    """Returns whether `Model.losses` has what does not grow with a batch."""
    activities = [getattr(x, "activity_regularizer", None) for x in flat_layers(model)]
    return bool(regularized_weights(model)) or any(activities)


def _metrics_of(model: keras.Model) -> Sequence[OwnMetric]:
    """Returns all metrics of a model, with their variables as before any example."""
    found = []
    for metric in all_metrics(model):
        metric.reset_state()
        initial = [variable.numpy() for variable in metric.variables]
        found.append(OwnMetric(metric=metric, initial=initial))
    return found
