"""Checks of a user's model against its data, before anything is written.

Each raises `UsageError` if it refuses something.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from models.objective import Objective, evaluated, labels_of
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.text import one_line
from strategies.common.types import Batch
from trainers.inputs.sources import ArraySource, Data
from trainers.user_code import OF_DOUBLES
from trainers.user_code.few_examples import shapes_in_words
from trainers.user_code.outer_variables import AssignmentScope, check_assigned

# In place of which `fit` and `evaluate` would call them.
_OF_FIT = (
    *("train_step", "test_step", "compute_loss", "compute_metrics"),
    *("get_metrics_result", "metrics", "losses", "trainable_weights"),
)


def check_states(model: keras.Model) -> None:
    """Refuses a model that keeps a state for each row of a batch."""
    # The number of rows of an input is no sign of it: a Sequential model has that of
    # the first rows it was called with, and Keras trains it with others.
    for layer in flat_layers(model):
        if getattr(layer, "stateful", False):
            raise UsageError(
                f"the layer {layer.name!r} keeps a state for each row of a batch in no "
                "variable of the model, which no strategy supports, one_device "
                "included: make it with stateful=False."
            )


def check_loaded(model: keras.Model) -> None:
    """Refuses a model with a layer that trains weights of a SavedModel.

    The layer's functions were traced with the variables of the file. A strategy makes
    others in their place, which would get no gradients.

    Raises:
      UsageError: The model has such a layer.
    """
    for layer in flat_layers(model):
        if isinstance(layer, keras.layers.TFSMLayer) and layer.trainable_variables:
            raise UsageError(
                f"the layer {layer.name!r} (TFSMLayer) trains weights inside of a "
                "SavedModel, of which strategies can make no copies: make it with "
                "trainable=False, or save and load the model itself (.keras)."
            )


def has_own_step(model: keras.Model) -> bool:
    """Returns whether the model or its class overrides a step or the loss of Keras."""
    return any(_has_own(model, name) for name in _OF_FIT)


def _has_own(model: keras.Model, name: str) -> bool:
    # A function may also be an attribute of the model alone.
    is_replaced = name in vars(model)
    return is_replaced or getattr(type(model), name) is not getattr(keras.Model, name)


def check_loop(model: keras.Model) -> None:
    """Refuses a model with a loop over the steps that only `fit` would run."""
    for name in ("make_train_function", "make_test_function"):
        if _has_own(model, name):
            raise UsageError(
                f"{type(model).__name__} has a {name} of its own, and --strategy runs "
                "steps in its place: override train_step or test_step instead."
            )


def remark_on_methods(model: keras.Model) -> str | None:
    """Returns a warning if `fit` would call methods of the class in each epoch."""
    of_epochs = ("evaluate", "reset_metrics", "_get_metrics_result_or_logs")
    names = [name for name in of_epochs if _has_own(model, name)]
    if not names:
        return None
    kind = type(model).__name__
    return (
        f"fit ignores {' and '.join(f'{kind}.{x}' for x in names)} here: "
        "History and callbacks have nothing of what it adds or changes"
    )


def check_methods(model: keras.Model) -> None:
    """Refuses methods of the model's class that only `fit` would call."""
    for name in _OF_FIT:
        if _has_own(model, name):
            raise UsageError(
                f"{type(model).__name__} has a {name} of its own, which only fit would "
                "call: give the program that calls fit as --script."
            )


def check_values(objective: Objective, model: keras.Model, batch: Batch) -> None:
    """Traces the objective, so that errors of the first step appear before the run.

    Raises:
      UsageError: The model takes text or complex numbers for real numbers, or assigns
        a variable that it does not have.
    """

    def values(batch: Batch) -> None:
        with AssignmentScope() as scope:
            objective.values(model, batch, training=True)
        check_assigned(scope, model)
        with keras.StatelessScope():
            evaluated(objective, model, batch)

    traced = tf.function(values, autograph=False).get_concrete_function(batch)
    for source, target in _casts(traced.graph.as_graph_def()):
        if source in _UNFIT and target not in _UNFIT:
            where = _where(batch, source)
            raise UsageError(f"the data has {where} of {_UNFIT[source]}")


def check_numbers(data: Data) -> None:
    """Refuses examples of strings or complex numbers, for models of the project."""
    source = data.evaluation
    for values in source.read(source.tensors(), tf.zeros([1], tf.int64)):
        for value in tf.nest.flatten(values):
            if value.dtype.as_datatype_enum in _UNFIT:
                kind = "strings" if value.dtype == tf.string else "complex numbers"
                raise UsageError(
                    f"the data set returned {kind}, and models of this project take "
                    "real numbers: turn them into numbers, or give a model of your own."
                )


@contextlib.contextmanager
def labels_blamed(labels: Any, predictions: Any) -> Iterator[None]:
    """Turns an error of the block into one line if labels do not fit the outputs.

    Raises:
      UsageError: The block failed, and labels are strings or complex numbers, or
        TensorFlow or Keras refuses them and their shape is not that of the output.
    """
    try:
        yield
    except Exception as error:
        for label in tf.nest.flatten(labels):
            unfit = _UNFIT.get(label.dtype.as_datatype_enum)
            if unfit is not None:
                raise UsageError(f"the data has labels of {unfit}") from error
        # Keras refuses a misspelled name by a ValueError as well.
        of_shapes = isinstance(error, tf.errors.InvalidArgumentError) or (
            isinstance(error, ValueError) and _OF_SHAPES.search(str(error))
        )
        # An operation may take no double precision.
        of_shapes = of_shapes and not OF_DOUBLES.search(str(error))
        shapes = shapes_in_words(labels_of(labels)), shapes_in_words(predictions)
        if isinstance(error, UsageError) or not of_shapes or shapes[0] == shapes[1]:
            raise
        raise UsageError(
            f"the loss and metrics fail with labels of shape {shapes[0]} and outputs "
            f"of shape {shapes[1]} ({one_line(error)[:200]}): change the labels, the "
            "last layer or the loss, so that they fit."
        ) from error


_OF_SHAPES = re.compile("shape|rank|dimension", re.IGNORECASE)
_COMPLEX = (
    "complex numbers, of which the model takes the real parts alone: give real and "
    "imaginary parts as features of their own, as by numpy.stack([x.real, x.imag], -1)."
)
# Types that TensorFlow casts to numbers with an error, or with a loss.
_UNFIT = {
    types_pb2.DT_STRING: "strings, which the model takes for numbers: turn them into "
    "numbers, or begin the model with a layer for strings, such as "
    "keras.layers.StringLookup.",
    types_pb2.DT_COMPLEX64: _COMPLEX,
    types_pb2.DT_COMPLEX128: _COMPLEX,
}


def _casts(graph: graph_pb2.GraphDef) -> Iterator[tuple[int, int]]:
    """Yields the types from and to which a graph casts, its functions included."""
    for nodes in (graph.node, *(made.node_def for made in graph.library.function)):
        for node in nodes:
            if node.op == "Cast":
                yield node.attr["SrcT"].type, node.attr["DstT"].type


def _where(batch: Batch, kind: int) -> str:
    """Returns which part of a batch has values of a type."""
    parts = {"features": batch.features, "labels": batch.labels}
    found = [
        name
        for name, values in parts.items()
        if any(value.dtype == kind for value in tf.nest.flatten(values))
    ]
    return " and ".join(found) or "values"


def check_ids(
    loss: Any,
    names: Sequence[str] | None,
    data: Data,
    few: Batch,
    predictions: Any,
) -> None:
    """Refuses ids of classes that the model has no output for.

    On a CPU TensorFlow ends the step at the first one; on a GPU its loss is not a
    number.

    Args:
      loss: Loss of `compile`: Keras's name, an object or a function, or a list or dict
        of these by output.
      names: Names of the model's outputs, in order; None if they are not known.
      data: Data whose labels are checked, where they are in memory.
      few: A few examples, which are checked where labels are not in memory.
      predictions: The model's outputs, of which only shapes matter.
    """
    of_ids = {name: _loss_of_ids(one) for name, one in _by_output(loss, names).items()}
    if not any(of_ids.values()):
        return
    sources = [
        labels_of(source.tensors()[1])
        for source in (data.train, data.evaluation)
        if isinstance(source, ArraySource)
    ] or [labels_of(few.labels)]
    outputs = _by_output(predictions, names)
    for name, found in of_ids.items():
        ignored = getattr(found, "ignore_class", None)
        for labels in sources:
            labelled = _by_output(labels, names).get(name)
            if found and labelled is not None and name in outputs:
                _check_range(labelled, outputs[name], name, ignored)


def _check_range(labels: Any, outputs: Any, name: str, ignored: int | None) -> None:
    num_classes = outputs.shape[-1]
    values = np.asarray(labels)
    if num_classes is None or values.dtype.kind not in "biuf":
        return
    if ignored is not None:
        values = values[values != ignored]
    wrong = values[~((values >= 0) & (values < num_classes))]
    if wrong.size:
        of_output = f" of output {name!r}" if name else ""
        found = "not a number" if np.isnan(wrong[0]) else f"{float(wrong[0]):.10g}"
        raise UsageError(
            f"the data has a label{of_output} that is {found}, and the model has "
            f"{num_classes} outputs for classes, 0 to {num_classes - 1}: give the "
            "model an output for each class, or number the classes from 0."
        )


def _by_output(values: Any, names: Sequence[str] | None) -> Mapping[str, Any]:
    if isinstance(values, Mapping):
        return values
    if isinstance(values, (list, tuple)):
        if names is None or len(names) != len(values):
            names = [str(index) for index in range(len(values))]
        return dict(zip(names, values, strict=True))
    return {"": values}


def _loss_of_ids(given: Any) -> Any:
    """Returns a compiled loss if it takes ids of classes; None otherwise."""
    try:
        loss = keras.losses.get(given)
    except ValueError:
        return None
    is_object = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    is_function = loss is keras.losses.sparse_categorical_crossentropy
    return loss if is_object or is_function else None
