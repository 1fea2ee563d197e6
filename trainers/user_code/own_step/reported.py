"""Sources of the values a step reports: metrics, or numbers computed from them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.graphs import counted_alone
from strategies.common.private_apis.replaced import replaced_in
from strategies.common.tracing import origins
from trainers.user_code import kind_of
from trainers.user_code.own_step.update_catcher import UpdateCatcher

# Position of a metric and the name in its result, which is empty for one number.
Result = tuple[int, str]


class Computed(NamedTuple):
    """A value that a step computes from metrics alone, such as a perplexity.

    Attributes:
      results: Results that it is computed from.
      function: Function of their values.
      constants: Other values that it is computed from, serialized.
    """

    results: Sequence[Result]
    function: Callable[..., tf.Tensor]
    constants: Sequence[bytes]


@contextlib.contextmanager
def results_noted(
    metrics: Sequence[keras.metrics.Metric],
) -> Iterator[list[tuple[Any, Result]]]:
    """Records each result that a metric returns, with the metric's index.

    Raises:
      UsageError: The block resets a metric, of which steps would add up.
    """
    noted: list[tuple[Any, Result]] = []

    def noting(index: int, result: Callable[[], Any]) -> Callable[[], Any]:
        def note() -> Any:
            found = result()
            by_name = found if isinstance(found, Mapping) else {"": found}
            noted.extend((value, (index, key)) for key, value in by_name.items())
            return found

        return note

    def refusing(metric: keras.metrics.Metric) -> Callable[[], NoReturn]:
        def refuse() -> NoReturn:
            raise UsageError(
                f"a step resets the metric {metric.name!r}, which has the sum of all "
                "steps of an epoch here: let the step return the number itself."
            )

        return refuse

    with contextlib.ExitStack() as block:
        for index, metric in enumerate(metrics):
            noting_result = noting(index, metric.result)
            block.enter_context(replaced_in(metric, "result", noting_result))
            block.enter_context(replaced_in(metric, "reset_state", refusing(metric)))
        yield noted


def source_of(
    value: Any, noted: Sequence[tuple[Any, Result]]
) -> Result | Computed | None:
    """Returns the source of a reported value; None if it needs more than metrics.

    Args:
      value: Value in the logs of a step that is being traced.
      noted: Results of metrics in the same step.
    """
    for result, source in noted:
        if result is value:
            return source
    if not tf.is_symbolic_tensor(value):
        return None
    sources = _symbolic(noted)
    used: dict[str, Result] = {}
    names: set[str] = set()
    for tensor in origins([value], sources):
        operation = tensor.op
        if tensor.name in sources:
            used[tensor.name] = sources[tensor.name]
        elif operation.type == "Placeholder" or operation.op_def.is_stateful:
            return None
        else:
            names.add(operation.name)
    if not used:
        return None
    part = _part(value.graph, names)
    constants = [node.attr["value"] for node in part.node if node.op == "Const"]
    return Computed(
        results=list(used.values()),
        function=_function(part, value.name, list(used)),
        constants=[value.SerializeToString() for value in constants],
    )


def metrics_used(
    scope: UpdateCatcher,
    metrics: Sequence[keras.metrics.Metric],
    noted: Sequence[tuple[Any, Result]],
) -> set[int]:
    """Returns the indices of metrics by whose results a step trains or sets weights.

    Args:
      scope: Scope of the step, which is being traced.
      metrics: Metrics of the model.
      noted: Results of metrics in the step.
    """
    counted = {id(variable) for metric in metrics for variable in metric.variables}
    gradients = [g for update in scope.updates for g in update.gradients.values()]
    written = [
        scope.get_current_value(variable)
        for variable in scope.assigned
        if id(variable) not in counted
    ]
    values = tf.nest.flatten([gradients, written], expand_composites=True)
    sources = _symbolic(noted)
    symbolic = filter(tf.is_symbolic_tensor, values)
    found = (sources.get(tensor.name) for tensor in origins(symbolic, sources))
    return {index for index, _ in filter(None, found)}


def _symbolic(noted: Sequence[tuple[Any, Result]]) -> dict[str, Result]:
    """Returns the metric of each result that is a tensor, by the tensor's name."""
    return {one.name: of for one, of in noted if tf.is_symbolic_tensor(one)}


def of_any_size(
    sources: Mapping[str, Result | Computed | None],
    of_half: Mapping[str, Result | Computed | None],
) -> dict[str, Result | Computed | None]:
    """Returns sources of the same values in traces of all examples and of a half.

    The size of a batch is a constant in a trace: a number that is computed from it has
    no source that holds for other batches.
    """

    def constants(source: Result | Computed | None) -> Sequence[bytes]:
        return source.constants if isinstance(source, Computed) else ()

    return {
        name: source if constants(source) == constants(of_half.get(name)) else None
        for name, source in sources.items()
    }


def _part(graph: tf.Graph, names: set[str]) -> Any:
    """Returns the operations of a graph with some names, as a GraphDef."""
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name in names:
            kept = part.node.add()
            kept.CopyFrom(node)
            # Both name operations and devices that this graph does not have.
            kept.attr.pop("_class", None)
            kept.device = ""
            inputs = [name for name in node.input if not name.startswith("^")]
            kept.input[:] = inputs
    return part


def _function(
    part: Any, returned: str, arguments: Sequence[str]
) -> Callable[..., tf.Tensor]:
    """Returns a part of a graph as a function.

    Args:
      part: Operations between the arguments and the value, a GraphDef.
      returned: Name of the tensor that the function returns.
      arguments: Names of tensors that are its arguments.
    """

    def compute(*values: tf.Tensor) -> tf.Tensor:
        given = dict(zip(arguments, values, strict=True))
        found = tf.graph_util.import_graph_def(
            part, input_map=given, return_elements=[returned], name=""
        )
        return found[0]

    return tf.function(counted_alone(compute), autograph=False)


def parts_of_metrics(
    metrics: Sequence[keras.metrics.Metric],
) -> Sequence[keras.metrics.Metric]:
    """Returns metrics, each once, and parts of metrics that consist of several."""
    # Compiled metrics are parts of one (keras/src/trainers/compile_utils.py), of which
    # some may count examples and others batches.
    parts = [part for whole in metrics for part in getattr(whole, "metrics", [whole])]
    return list({id(metric): metric for metric in parts}.values())


def remark_on_metrics(step: Any) -> str | None:
    """Returns a warning if `fit` does not reset a metric that a `ModelStep` reports."""
    results: list[Result] = []
    for source in step.sources.values():
        if isinstance(source, Computed):
            results += source.results
        elif source is not None:
            results.append(source)
    used = [step.metrics[index].metric for index in {i: i for i, _ in results}]
    reset = {id(metric) for metric in parts_of_metrics(step.model.metrics)}
    names = [metric.name for metric in used if id(metric) not in reset]
    if not names:
        return None
    kind = type(step.model).__name__
    return (
        f"{kind}.metrics is without {', '.join(names)}, which {kind}.{step.name} "
        "reports: fit never resets it, so that it is of all epochs there, and of one "
        "here"
    )


def all_metrics(model: keras.Model) -> Sequence[keras.metrics.Metric]:
    """Returns all metrics of a model, also those its `metrics` leaves out."""
    # A class may override the property, and forget a metric that it updates.
    return parts_of_metrics([*model.metrics, *keras.Model.metrics.fget(model)])


def as_numbers(logs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the mean of each value of some logs, float64."""
    return {
        name: tf.reduce_mean(tf.cast(value, tf.float64)) for name, value in logs.items()
    }


def flat_logs(logs: Any, title: str) -> dict[str, Any]:
    """Returns logs by name; a metric's result may be a dictionary of several."""
    if logs is None:
        return {}
    if not isinstance(logs, Mapping):
        raise UsageError(
            f"{title} returned {kind_of(logs)}: return a dictionary of numbers by name."
        )
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return found
