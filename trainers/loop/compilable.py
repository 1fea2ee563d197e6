"""Parts of a model that XLA computes as well as TensorFlow does, or better, on CPUs.

A model of the user may hold any Python code, as a layer, an activation or a loss. XLA
may refuse it, or draw other random numbers. So a part counts only if it is known.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective
from strategies.common.private_apis.models import flat_layers
from strategies.inner_loop.reduction import bytes_of

_DENSE_LAYERS = (
    keras.layers.InputLayer, keras.layers.Dense, keras.layers.EinsumDense,
    keras.layers.Flatten, keras.layers.Reshape, keras.layers.Permute,
    keras.layers.RepeatVector, keras.layers.Identity, keras.layers.Rescaling,
    keras.layers.Activation, keras.layers.ReLU, keras.layers.LeakyReLU,
    keras.layers.ELU, keras.layers.Softmax, keras.layers.PReLU,
    keras.layers.LayerNormalization, keras.layers.RMSNormalization,
    keras.layers.UnitNormalization, keras.layers.Concatenate, keras.layers.Add,
    keras.layers.Subtract, keras.layers.Multiply, keras.layers.Average,
    keras.layers.Maximum, keras.layers.Minimum, keras.layers.Dot,
    keras.layers.Embedding, keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention, keras.layers.GlobalAveragePooling1D,
    keras.layers.GlobalMaxPooling1D,
)  # fmt: skip
# Operations of functional models: nodes without variables, made by `keras.ops` or by
# operators such as `+`.
_OPERATIONS = (
    "Absolute", "Add", "BroadcastTo", "Cast", "Concatenate", "Cumsum", "Divide",
    "Einsum", "Exp", "ExpandDims", "Gelu", "GetItem", "Log", "LogSoftmax", "Matmul",
    "Max", "Maximum", "Mean", "Min", "Minimum", "Multiply", "Negative", "OnesLike",
    "Power", "Relu", "Reshape", "Sigmoid", "Silu", "Softmax", "Softplus", "Sqrt",
    "Square", "Squeeze", "Stack", "Subtract", "Sum", "SwapAxes", "Tanh", "Transpose",
    "TrueDivide", "Where", "ZerosLike",
)  # fmt: skip
# In a compiled step the gradient of a table is as large as the table. Without XLA it
# has only the used rows, which is less to add up and to apply.
_MOST_TABLE_BYTES = 2**20

# Where code comes from that is known to be the same under XLA.
_KNOWN_PACKAGES = ("keras", "tensorflow")


def obstacles_of_model(model: keras.Model) -> Iterator[str]:
    """Yields each part of a built model that is unknown or slow under XLA, in words."""
    tables: list[tf.Variable] = []
    for layer in flat_layers(model):
        name = f"layer {layer.name!r} ({type(layer).__name__})"
        if isinstance(layer, keras.Model):
            yield from _obstacles_of_graph(layer)
        elif type(layer) not in _DENSE_LAYERS and not _does_nothing(layer):
            yield f"{name} is not dense"
        for part in _own_code(layer):
            yield f"{name} has code of its own: {part}"
        if isinstance(layer, keras.layers.Embedding):
            tables.extend(variable.value for variable in layer.weights)
    if bytes_of(tables) > _MOST_TABLE_BYTES:
        yield f"embeddings of {bytes_of(tables) / 2**20:.1f} MiB"


def _does_nothing(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is the dropout of rate 0 that attention layers have."""
    # Not isinstance: a subclass of the user may compute anything.
    return type(layer) is keras.layers.Dropout and not layer.rate


def _obstacles_of_graph(model: keras.Model) -> Iterator[str]:
    """Yields each unknown operation of a model, and its class if unknown, in words."""
    if not _is_known(model):
        yield f"model {model.name!r} has code of its own: {type(model).__name__}"
    # A sequential model has layers alone.
    for operation in getattr(model, "operations", ()):
        if isinstance(operation, keras.layers.Layer):
            continue
        kind = type(operation).__name__
        if kind not in _OPERATIONS or not _is_known(operation):
            yield f"operation {operation.name!r} ({kind}) is not dense"


def obstacles_of_objective(objective: Objective) -> Iterator[str]:
    """Yields each loss or metric that is unknown under XLA, in words."""
    compiled = objective.compiled
    if compiled is None:
        yield "the model computes its own loss"
        return
    for loss in _flat(compiled.loss):
        yield from _obstacles_of(keras.losses.get(loss), "loss")
    for metric in _flat([compiled.metrics, compiled.weighted_metrics]):
        resolved = keras.metrics.get(metric)
        yield from _obstacles_of(resolved, "metric")
        if isinstance(resolved, keras.metrics.Metric) and not isinstance(
            resolved, keras.metrics.MeanMetricWrapper
        ):
            yield f"metric {resolved.name!r} keeps counts"


def _flat(compiled: Any) -> list[Any]:
    """Returns the losses or metrics of a structure of them, without None."""
    return [part for part in tf.nest.flatten(compiled) if part is not None]


def _obstacles_of(part: Any, kind: str) -> Iterator[str]:
    """Yields an obstacle in words if a loss or a metric is unknown."""
    if not _is_known(part) or any(_own_code(part)):
        name = getattr(part, "name", None) or getattr(part, "__name__", part)
        yield f"{kind} {name!r} has code of its own"


def _own_code(owner: Any) -> Iterator[str]:
    """Yields the name of each attribute that is code of the user."""
    for name, value in vars(owner).items():
        if callable(value) and not _is_known(value):
            yield name


def _is_known(part: Any) -> bool:
    """Returns whether a function or an object's class is of a known package."""
    # `__module__` of an object is that of its class.
    module = getattr(part, "__module__", None) or ""
    return module.partition(".")[0] in _KNOWN_PACKAGES
