"""Arithmetic on replica outputs, dense or sparse."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.results import OWN_FINITE_CHECKS


def sum_outputs(parts: Sequence[ReplicaOutputs]) -> ReplicaOutputs:
    """Returns the sum of replica outputs, entry by entry."""
    return ReplicaOutputs(
        gradients=[
            sum_gradients(gradients)
            for gradients in zip(*(part.gradients for part in parts), strict=True)
        ],
        state=sum_structures([part.state for part in parts]),
        sums=sum_structures([part.sums for part in parts]),
    )


def sum_gradients(parts: Sequence[Any]) -> Any:
    """Returns the sum of one variable's gradients, dense or sparse; None if all are."""
    # All replicas compute the same graph, so that the first part shows the type of all.
    if parts[0] is None:
        return None
    if isinstance(parts[0], tf.IndexedSlices):
        # Rows with equal indices are added up later, when the gradient is applied.
        return tf.IndexedSlices(
            tf.concat([part.values for part in parts], axis=0),
            tf.concat([part.indices for part in parts], axis=0),
            parts[0].dense_shape,
        )
    return tf.add_n(parts)


def sum_structures(parts: Sequence[Any]) -> Any:
    """Returns the sum of structures of tensors, leaf by leaf."""
    return tf.nest.map_structure(lambda *values: tf.add_n(values), *parts)


def with_known_shapes(
    gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> list[Any]:
    """Returns the same gradients, each with the static shape of its variable.

    A graph does not know all of them: the gradient of a `Dense` kernel has the shape
    [None, n] if the inputs have three dimensions or more, and that of a gathered tensor
    has no static number of rows. Whoever packs gradients divides a vector by their
    shapes.
    """
    return [
        _with_known_shape(gradient, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _with_known_shape(gradient: Any, shape: tf.TensorShape) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        gradient.values.set_shape([None, *shape[1:]])
        dense_shape = tf.constant(shape.as_list(), tf.int64)
        return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)
    if gradient is not None:
        gradient.set_shape(shape)
    return gradient


def scaled(value: Any, factor: tf.Tensor) -> Any:
    """Returns a tensor or IndexedSlices times a floating scalar; None stays None."""
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        rows = scaled(value.values, factor)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


def clipped(gradients: Sequence[Any], norm: tf.Tensor, largest: float) -> list[Any]:
    """Returns gradients scaled down to at most a global norm.

    Args:
      gradients: Tensors, IndexedSlices or None.
      norm: Norm of all gradients, of which these may be a part, a scalar.
      largest: Norm to which larger ones are scaled down.
    """
    # `tf.clip_by_global_norm` multiplies by largest * min(1 / norm, 1 / largest). From
    # 8.5e37 on, 1 / largest is denormal and counts as zero, and so does the gradient.
    factor = largest / tf.maximum(norm, largest)
    return [scaled(gradient, factor) for gradient in gradients]


def finite_checks(outputs: ReplicaOutputs) -> tf.Tensor:
    """Returns a number for each gradient, then for each tensor of layer state, float64.

    The number is the tensor's sum, which is not finite if an element is not finite or
    if the sum overflows its type. It is zero for integers and missing gradients.
    """
    # A sum reads a tensor once, on its device, and makes no tensor of the same size, as
    # `tf.math.is_finite` would.
    values = [*outputs.gradients, *tf.nest.flatten(outputs.state)]
    checks = [_finite_check(value) for value in values]
    return tf.stack(checks or tf.zeros([0], tf.float64))


def _finite_check(value: Any) -> tf.Tensor:
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    if value is None or not value.dtype.is_floating:
        return tf.zeros([], tf.float64)
    with tf.device(value.device):
        return total_of(value)


def total_of(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a floating tensor, a float64 scalar."""
    return tf.cast(tf.reduce_sum(widened(value)), tf.float64)


def widened(value: Any) -> Any:
    """Returns a floating tensor or IndexedSlices in a type of 4 bytes or more.

    Sums of many numbers in float16 overflow: it ends at 65,504.
    """
    if value is None or value.dtype.size >= tf.float32.size:
        return value
    if isinstance(value, tf.IndexedSlices):
        rows = widened(value.values)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    return tf.cast(value, tf.float32)


def with_gradients(
    outputs: ReplicaOutputs, values: Mapping[int, Any]
) -> ReplicaOutputs:
    """Returns outputs with other gradients at some indices."""
    gradients = [values.get(i, own) for i, own in enumerate(outputs.gradients)]
    return outputs._replace(gradients=gradients)


def with_own_finite_checks(
    outputs: ReplicaOutputs, values: Mapping[int, tf.Tensor] | None = None
) -> ReplicaOutputs:
    """Returns outputs with a sum that says whether this replica's numbers are finite.

    Args:
      outputs: Outputs of one replica.
      values: Values to check in the place of some gradients, by index.
    """
    # Zero, or NaN if a value is not finite: 0 * inf is NaN. The sum is NaN on every
    # replica then, so that all replicas skip the update.
    own = 0 * finite_checks(with_gradients(outputs, values or {}))
    return outputs._replace(sums={**outputs.sums, OWN_FINITE_CHECKS: own})


def with_finite_checks_of_sum(summed: ReplicaOutputs) -> ReplicaOutputs:
    """Returns summed outputs whose finite checks cover the sum and all its parts.

    The sum may overflow where no part of it does.
    """
    checks = summed.sums[OWN_FINITE_CHECKS] + finite_checks(summed)
    return summed._replace(sums={**summed.sums, OWN_FINITE_CHECKS: checks})


def checks_of_sum(summed: ReplicaOutputs) -> tf.Tensor:
    """Returns the finite checks of summed outputs, which may carry them as a sum.

    They do where no replica has the whole sum of gradients, or where a part may be
    infinite and its approximation is not.
    """
    carried = summed.sums.get(OWN_FINITE_CHECKS)
    return finite_checks(summed) if carried is None else carried


def bytes_of(
    tensors: Iterable[tf.Variable | tf.Tensor | tf.TensorSpec],
    send_as: tf.DType | None = None,
) -> int:
    """Returns the bytes of one copy of each tensor, as sent between tasks.

    Args:
      tensors: Variables, tensors or specs of known shape.
      send_as: Type of all of them on the wire; None for their own types.
    """
    return sum((send_as or t.dtype).size * t.shape.num_elements() for t in tensors)
