"""Layer state that several workers or towers update at the same time."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from strategies.common.tracing import outside_of_traces
from strategies.common.types import Batch
from trainers.model.layer_state import LayerState, Mapped, weighted


class Change(NamedTuple):
    """Change of a layer's state.

    Attributes:
      new: Value that it wrote.
      old: Value that it read.
      decay: Scalar derivative of the new value with respect to the old one.
    """

    new: tf.Tensor
    old: tf.Tensor
    decay: tf.Tensor


class OverlappingLayerState(LayerState):
    """State of layers that several workers or towers update at the same time.

    A layer computes its new value from a value that it read before its forward pass.
    Until it is written others have written theirs, which must not be lost. So of

      new = decay * old + contribution

    the decay and the contribution are kept, and applied to the present value in one
    operation: a moving average decays as often as it is updated, a counter counts
    every step. The decay is the derivative of the new value with respect to the old
    one, so that it need not be known: 0.99 for the moving average of that momentum, 1
    for a counter or a sum, 0 for a value that is set anew. Integers have no derivative
    and count as counters.
    """

    def __init__(self, model: keras.Model):
        """Makes a variable for every kind of state, on the state's device."""
        super().__init__(model)
        self._operands: dict[Any, tf.Variable] = {}
        for variable in self._variables:
            if variable.value.dtype.is_floating:
                self._operand_for(variable.value)

    def present(self) -> list[tf.Tensor]:
        return [v.value.read_value() for v in self._variables]

    @contextlib.contextmanager
    def followed(self, mapped: Mapped) -> Iterator[tf.GradientTape]:
        state = {id(variable) for variable in self._variables}
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            for variable, value in mapped:
                if id(variable) in state and value.dtype.is_floating:
                    tape.watch(value)
            yield tape

    def changes(
        self, written: dict[str, tf.Tensor], mapped: Mapped, tape: tf.GradientTape
    ) -> dict[str, Change]:
        self.check_keeps_weights(written, "--update=async")
        values = {id(variable): value for variable, value in mapped}
        old = {index: values[id(self._variables[int(index)])] for index in written}
        return {
            index: Change(new, old[index], _decay(tape, new, old[index]))
            for index, new in written.items()
        }

    def weight_by_shard(
        self, written: Mapping[str, Any], batch: Batch
    ) -> dict[str, Any]:
        contributions = {i: _contribution(change) for i, change in written.items()}
        decays = {
            index: change.decay
            for index, change in written.items()
            if change.new.dtype.is_floating
        }
        shifts = {
            index: written[mean].new - written[mean].old
            for index, mean in self._moving_means.items()
            if mean in written
        }
        squares = {index: tf.square(shift) for index, shift in shifts.items()}
        return {
            "decays": weighted(decays, batch),
            "shifts": weighted(shifts, batch),
            "squared_shifts": weighted(squares, batch),
            "values": weighted(contributions, batch),
        }

    def assign(self, summed: dict[str, Any]) -> None:
        """Applies contributions, each to the value that its variable has then."""
        self._note_assigned(summed)
        spread = self._spread_between_replicas(
            summed["squared_shifts"], summed["shifts"]
        )
        for index, value in summed["values"].items():
            variable = self._variables[int(index)]
            if index in summed["decays"]:
                value += spread.get(id(variable), 0)
                self._decay_and_add(variable.value, summed["decays"][index], value)
            elif variable.value.dtype.is_bool:
                variable.value.assign(tf.cast(value, tf.bool))
            else:
                variable.value.assign_add(value)

    def _decay_and_add(
        self, variable: tf.Variable, decay: tf.Tensor, value: tf.Tensor
    ) -> None:
        """Makes a variable decay * variable + value, in one operation.

        `variable.assign(decay * variable + value)` is three, between which others may
        write. The operation that TensorFlow has for momentum also subtracts from
        weights, here nothing from a variable that stands in for them.
        """
        weights = self._operand_for(variable)
        tf.raw_ops.ResourceApplyMomentum(
            var=weights.handle,
            accum=variable.handle,
            lr=tf.zeros([], variable.dtype),
            grad=value,
            momentum=decay,
            use_locking=True,
        )

    def _operand_for(self, variable: tf.Variable) -> tf.Variable:
        kind = variable.device, variable.dtype, tuple(variable.shape)
        if kind not in self._operands:
            with outside_of_traces(), tf.device(variable.device):
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._operands[kind] = tf.Variable(zeros, trainable=False)
        return self._operands[kind]


def _contribution(change: Change) -> tf.Tensor:
    if change.new.dtype.is_floating:
        return change.new - change.decay * change.old
    return change.new if change.new.dtype.is_bool else change.new - change.old


def _decay(tape: tf.GradientTape, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns a scalar: how much of the old value is in the new one.

    If each element depends on its own old value by the same factor, that factor. If the
    factors differ and are positive, as where some rows of a table are updated: 1, so
    that the difference is added. Otherwise, as for a queue that is shifted, zero: the
    new value replaces the present one.
    """
    if not new.dtype.is_floating:
        return tf.zeros([])
    ones = tf.ones_like(new)
    # Distinguishes a factor of each element from what mixes elements.
    others = tf.reshape(tf.linspace(1.0, 2.0, tf.size(new)), tf.shape(new))
    others = tf.cast(others, new.dtype)
    plain, weighted = (_product(tape, new, old, by) for by in (ones, others))
    if plain is None or weighted is None:
        return tf.zeros([], new.dtype)
    first = tf.reshape(plain, [-1])[0]
    is_own = _is_close(weighted, plain * others)
    is_uniform = is_own & _is_close(plain, first * ones)
    is_positive = is_own & tf.reduce_all(plain > 0)
    mixed = tf.cast(is_positive, new.dtype)
    return tf.where(is_uniform, first, mixed)


def _product(
    tape: tf.GradientTape, new: tf.Tensor, old: tf.Tensor, by: tf.Tensor
) -> tf.Tensor | None:
    """Returns the transposed Jacobian times a vector; None for zeros."""
    try:
        product = tape.gradient(new, old, output_gradients=by)
    except LookupError:
        # An operation on the way has no gradient.
        return None
    return None if product is None else tf.convert_to_tensor(product)


def _is_close(some: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns whether tensors are equal but for rounding; False if not finite."""
    # Factors are products of few numbers: many times what rounding changes in them.
    bound = 1e-5 if some.dtype.size > 2 else 0.05
    return tf.reduce_all(tf.abs(some - others) <= bound * tf.abs(others))
