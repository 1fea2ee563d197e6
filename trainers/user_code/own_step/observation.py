"""Observation of a model's own step on a few examples and on halves of them."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.private_apis.replaced import replaced_in
from strategies.common.types import Batch
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.user_code.halves import (
    are_means,
    are_sums,
    graph_of,
    number_of,
    on_exchanged_halves,
    on_halves,
    relative_rounding,
    twice,
)
from trainers.user_code.independence import agree
from trainers.user_code.outer_variables import check_assigned, remark_on_evaluation
from trainers.user_code.own_step.model_step import ModelStep, regularized_weights
from trainers.user_code.own_step.reported import (
    Computed,
    Result,
    as_numbers,
    flat_logs,
    metrics_used,
    of_any_size,
    results_noted,
    source_of,
)
from trainers.user_code.own_step.update_catcher import CaughtUpdate
from trainers.user_code.state_remark import (
    changes_in,
    has_normalized,
    normalizations,
    normalizes_batches,
    remark_on,
    users_state,
)


class Observed(NamedTuple):
    """Observations of a method, with some examples and with each half of them.

    Attributes:
      is_divisible: False if halves were not observed: all examples are their only half.
      updates: Calls of optimizers.
      reads_after: Attribute `reads_after` of the `UpdateCatcher`.
      gradients: A number of each gradient, for all examples and each half, float64
        [3, n].
      is_repeatable: True if the same examples give the same gradients again.
      draws_for_examples: True if all random numbers belong to single examples.
      changes: Changes of the variables of each metric, each [3, ...]: for all examples
        and each half.
      sources: Attribute `sources` of the `ModelStep`.
      numbers: Number of each reported name, for all examples and each half, float64
        [3].
      state_remark: Warning about the state of layers; None for none.
      evaluation_remark: Warning about the assigned variables, if this evaluates.
      metrics_used: Names of metrics whose results gradients or weights depend on.
      is_linear: True if gradients are the mean or the sum of the halves' gradients.
      gives_sums: True if gradients are sums over examples, and no means.
      run: Function that returns the observations of a batch.
      in_graph: The same function in a graph, traced for a batch of all examples.
      normalizes: True if a layer normalizes over the examples of a batch; without
        training=True it takes its moving statistics.
    """

    is_divisible: bool
    updates: Sequence[CaughtUpdate]
    reads_after: Set[int]
    gradients: np.ndarray
    is_repeatable: bool
    draws_for_examples: bool
    changes: Sequence[Sequence[np.ndarray]]
    sources: Mapping[str, Result | Computed | None]
    numbers: Mapping[str, np.ndarray]
    state_remark: str | None
    evaluation_remark: str | None
    metrics_used: Sequence[str]
    is_linear: bool
    gives_sums: bool
    run: Callable[[Batch], Any]
    in_graph: Callable[[Batch], Any]
    normalizes: bool

    @property
    def is_nearly_sum(self) -> bool:
        """True if gradients differ from the sum of the halves' by less than 1 % of it.

        All numbers are compared together: a gradient that is zero in theory, such as
        that of a bias before a normalization, is rounding alone. Rounding is some 1e-5
        of the whole in float32.
        """
        whole, *halves = self.gradients
        return _nearly(whole, np.sum(halves, axis=0))

    @property
    def has_sparse_gradients(self) -> bool:
        """True if a gradient has only some rows of its variable."""
        return any(
            isinstance(gradient, tf.IndexedSlices)
            for update in self.updates
            for gradient in update.gradients.values()
        )


def observe(step: ModelStep, few: Batch, is_divisible: bool) -> Observed:
    """Runs a step on some examples and on halves of them; nothing is changed."""
    # An example gets the same ones in a half as among all.
    replayed = ReplayedRandomNumbers()
    numbers = StepRandomNumbers(0, replayed)
    # Of each trace, that of all examples first.
    kept: list[tuple[Any, Mapping[str, Any], bool]] = []
    used: set[int] = set()
    # A normalization of halves changes what comes after it.
    variables = [] if normalizes_batches(step.model) else users_state(step.model)

    def run(batch: Batch) -> Any:
        keyed = numbers.keyed(seed_states(step.model), batch)
        metrics = [own.metric for own in step.metrics]
        with results_noted(metrics) as noted, numbers.drawn(batch):
            scope, logs = step.run(batch, [*keyed, *regularized_weights(step.model)])
            results = flat_logs(step.model.get_metrics_result(), step.name)
        check_assigned(scope, step.model, metrics)
        used.update(metrics_used(scope, metrics, noted))
        # At the end of an epoch Keras prefers the results of metrics with the same
        # names (keras/src/trainers/trainer.py, `_get_metrics_result_or_logs`).
        reported = results if results.keys() == logs.keys() else logs
        sources = {name: source_of(value, noted) for name, value in reported.items()}
        kept.append((scope, sources, has_normalized(step.model, scope, batch.features)))
        return (
            step.changes(scope),
            [_numbers(number_of, update) for update in scope.updates],
            [_numbers(tf.norm, update) for update in scope.updates],
            # Metrics have their values from before the step again.
            as_numbers(logs),
            changes_in(scope, variables),
        )

    in_graph = graph_of(run)
    outputs = on_halves(in_graph, few, is_divisible)
    scope, of_half, normalizes = kept[-1]
    sources = of_any_size(kept[0][1], of_half)
    _, gradients, norms, _, states = zip(*outputs, strict=True)
    arrays = _arrays(outputs, sources)
    # Terms of both signs cancel, so that a sum's own size does not bound its error.
    rounding = relative_rounding(step.model)
    errors = rounding * np.array(tf.nest.flatten(norms[0]))
    is_mean = are_means(arrays["gradients"], errors)
    is_sum = are_sums(arrays["gradients"], errors)
    return Observed(
        is_divisible=is_divisible,
        updates=scope.updates,
        reads_after=scope.reads_after,
        is_repeatable=agree(*map(tf.nest.flatten, (gradients[-1], gradients[0]))),
        draws_for_examples=replayed.are_of_examples,
        sources=sources,
        state_remark=remark_on(variables, np.array(states[:-1]), rounding),
        evaluation_remark=remark_on_evaluation(scope, [x.metric for x in step.metrics]),
        metrics_used=[step.metrics[index].metric.name for index in sorted(used)],
        is_linear=is_mean or is_sum,
        gives_sums=is_sum and not is_mean,
        run=run,
        in_graph=in_graph,
        normalizes=normalizes,
        **arrays,
    )


def observe_doubled(seen: Observed, few: Batch) -> Observed:
    """Returns observations with changes, gradients and numbers of doubled examples.

    Each half of the batch has all examples, of which the step has been traced already.
    """
    outputs = on_halves(seen.in_graph, twice(few))
    return seen._replace(**_arrays(outputs, seen.sources))


def _arrays(outputs: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns attributes of `Observed` of a batch and its halves, as arrays."""
    changes, gradients, _, reported, _ = zip(*outputs[:-1], strict=True)
    flat = [tf.nest.flatten(one) for one in gradients]
    numbers = {name: np.array([part[name] for part in reported]) for name in names}
    return {
        "changes": tf.nest.map_structure(lambda *parts: np.stack(parts), *changes),
        "gradients": np.array(flat, np.float64),
        "numbers": numbers,
    }


def compares_examples(step: ModelStep, seen: Observed, few: Batch) -> bool:
    """Returns whether gradients for an example depend on the others in its batch.

    A layer that normalizes over the batch does not count.
    """
    if not seen.is_divisible or few.num_rows < 2:
        return False
    if seen.draws_for_examples and not seen.normalizes:
        return not seen.is_linear
    # A half has other moments, or draws other numbers.
    run = seen.in_graph
    with contextlib.ExitStack() as block:
        if seen.normalizes:
            for layer in normalizations(step.model):
                block.enter_context(replaced_in(layer, "call", _inference(layer.call)))
            run = graph_of(seen.run)
        parts = [one[1] for one in on_exchanged_halves(run, few)]
    found = np.array([tf.nest.flatten(one) for one in parts], np.float64)
    one, other, *doubled = found
    rounding = relative_rounding(step.model)
    is_sum = _nearly(one + other, np.sum(doubled, axis=0), rounding)
    return bool(np.isfinite(found).all()) and not is_sum


def _inference(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer's call that normalizes by its moving statistics."""

    def infer(*inputs: Any, **named: Any) -> Any:
        return call(*inputs, **{**named, "training": False})

    return infer


def _nearly(found: np.ndarray, expected: np.ndarray, rounding: float = 0.0) -> bool:
    """Returns whether numbers differ by 1 % of their norm at most, or by rounding."""
    difference = np.linalg.norm(found - expected)
    return bool(difference <= max(0.01, rounding) * np.linalg.norm(expected))


def _numbers(
    function: Callable[[tf.Tensor], tf.Tensor], update: CaughtUpdate
) -> list[tf.Tensor]:
    """Returns the value of a function for each gradient, float64 scalars."""
    gradients = [g for g in update.gradients.values() if g is not None]
    return [function(tf.cast(tf.convert_to_tensor(g), tf.float64)) for g in gradients]
