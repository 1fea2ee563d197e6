"""Non-trainable variables that training changes, such as moving averages.

During a step layers write them into a scope and not into the variables. Each
replica's new values then become summands, like gradients, and the
variables are assigned once, after the sum. So all replicas contribute, and
no variable is written from several replicas.

Where updates overlap, a layer computes its value from a state that others may have
changed since. Then the layer's change of its state is applied to the present value on
its device: `OverlappingLayerState`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis import flat_layers
from strategies.common.types import Batch
from trainers.model.rng import seed_states


def sums_over_replicas(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer all-reduces over replicas within its forward pass."""
    normalizes = isinstance(layer, keras.layers.BatchNormalization)
    return normalizes and layer.synchronized


# Values in place of variables.
Mapped = Sequence[tuple[keras.Variable, tf.Tensor]]


class LayerState:
    """Conversion of new layer state to summable replica outputs, and its assignment.

    Floating point values are averaged, weighted by each shard's examples; integers take
    the first replica's value. A moving variance also needs the spread *between* the
    replicas' means: with batch means m_r and weights w_r of the shards, variance =
    sum(w_r variance_r) + sum(w_r m_r^2) - (sum(w_r m_r))^2 (the law of total variance).
    So the moving statistics are the statistics of the global batch, although each
    replica normalizes with its own rows.
    """

    def __init__(self, model: keras.Model):
        seeds = {id(state) for state in seed_states(model)}
        self._variables = [
            v for v in model.non_trainable_variables if id(v) not in seeds
        ]
        # A layer may also write weights that are trained, as SpectralNormalization.
        self._written = [*self._variables, *model.trainable_variables]
        self._normalizations = [
            layer
            for layer in flat_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization)
            and layer.built
            # Keras 3.12, the newest version for Python 3.10, has no renormalization.
            and not getattr(layer, "renorm", False)
        ]
        self._assigned: list[keras.Variable] = []

    @property
    def variables(self) -> Sequence[keras.Variable]:
        """Non-trainable variables, without the counters of random layers."""
        return self._variables

    @property
    def assigned(self) -> Sequence[keras.Variable]:
        """Target variable of each summed tensor, in the order of `tf.nest.flatten`.

        The list is complete once `assign` has been traced.
        """
        return self._assigned

    def present(self) -> list[tf.Tensor] | None:
        """Returns the values that layers are to see; None for the variables' own."""
        return None

    @contextlib.contextmanager
    def followed(self, mapped: Mapped) -> Iterator[tf.GradientTape | None]:
        """Records what layers do with their state inside the block, if that is needed.

        Args:
          mapped: values that the layers see in place of variables.
        """
        del mapped
        yield None

    def changes(
        self, written: dict[str, tf.Tensor], mapped: Mapped, tape: Any
    ) -> dict[str, Any]:
        """Returns the argument of `outputs`.

        Args:
          written: New values, by a variable's position.
          mapped: Values that the layers saw in place of variables.
          tape: Tape of `followed`.
        """
        del mapped, tape
        return written

    def collect_updates(
        self,
        scope: keras.StatelessScope,
        mapped: Mapped,
    ) -> dict[str, tf.Tensor]:
        """Returns the values that layers wrote in a scope, by position of the variable.

        Args:
          scope: Scope in which the layers ran on a replica's rows.
          mapped: Values that the scope was created with.
        """
        # A value that the scope was created with is not new.
        given = {id(variable): value for variable, value in mapped}
        current = {
            str(index): (scope.get_current_value(variable), given.get(id(variable)))
            for index, variable in enumerate(self._written)
        }
        found = {index: new for index, (new, old) in current.items() if new is not old}
        for index, new in found.items():
            # What a layer computes from its inputs may have a shape that is not known.
            new.set_shape(self._written[int(index)].shape)
        return found

    def rewritten(self, written: dict[str, Any]) -> dict[int, tf.Tensor]:
        """Returns the new values of weights that are trained, by the variable's id.

        As in `fit`, the gradient is with respect to the new value, and the optimizer
        changes that.
        """
        first = len(self._variables)
        return {
            id(self._written[int(index)]): value
            for index, value in written.items()
            if int(index) >= first
        }

    def check_keeps_weights(self, written: dict[str, Any], how: str) -> None:
        """Refuses layers that write weights which are trained.

        Args:
          written: new values, by a variable's position.
          how: The setting under which they cannot.

        Raises:
          UsageError: one does.
        """
        for variable in self._written[len(self._variables) :]:
            if id(variable) in self.rewritten(written):
                raise UsageError(
                    f"{how} does not fit this model: a layer assigns "
                    f"{variable.path!r}, which is trained, in every step, as "
                    "SpectralNormalization does; use another strategy or "
                    "--update=sync, or leave the layer out."
                )

    def weight_by_shard(
        self, written: dict[str, tf.Tensor], batch: Batch
    ) -> dict[str, Any]:
        """Returns one replica's contribution to the new values.

        Args:
          written: Values that the replica's layers wrote, from `written`.
          batch: Batch with the number of rows that count and the replica's index.
        """
        # Fraction of the global batch; the weights of all replicas sum to 1.
        weight = batch.num_rows / batch.global_size
        values = {
            index: _share(value, weight, batch.replica)
            for index, value in written.items()
        }
        position = self._positions()
        # The new moving mean of this replica, relative to the old one: (1 - momentum)
        # times the distance of the batch mean from the old mean.
        shifts = {}
        for index, layer in enumerate(self._normalizations):
            mean = written.get(position[id(layer.moving_mean)])
            if mean is not None:
                shift = mean - layer.moving_mean.value
                shifts[str(index)] = tf.cast(weight, shift.dtype) * tf.square(shift)
        return {"values": values, "squared_shifts": shifts}

    def assign(self, summed: dict[str, Any]) -> None:
        """Assigns the variables from the sum of all replicas' contributions.

        Args:
          summed: Sum of the values that `outputs` returned.
        """
        shifts, values = (sorted(summed[k]) for k in ("squared_shifts", "values"))
        # tf.nest.flatten orders dictionaries by sorted key: "squared_shifts" before
        # "values".
        self._assigned = [
            *(self._normalizations[int(index)].moving_variance for index in shifts),
            *(self._written[int(index)] for index in values),
        ]
        spread = self._spread_between_replicas(summed)
        for index, value in summed["values"].items():
            variable = self._written[int(index)]
            if variable.value.dtype.is_bool:
                value = tf.cast(value, tf.bool)
            else:
                value += spread.get(id(variable), 0)
            assign_everywhere(variable.value, value)

    def _spread_between_replicas(self, summed: dict[str, Any]) -> dict[int, tf.Tensor]:
        """Returns the addition to each moving variance, by id of the variable.

        A moving mean changes by shift = (1 - momentum) (m - old). The variance of the
        replicas' means is therefore the variance of their shifts over (1 - momentum)^2;
        a moving variance includes (1 - momentum) of it.
        """
        position = self._positions()
        spread = {}
        for index, squared in summed["squared_shifts"].items():
            layer = self._normalizations[int(index)]
            mean = summed["values"][position[id(layer.moving_mean)]]
            shift = mean - layer.moving_mean.value
            # Rounding can make the difference slightly negative.
            variance = tf.maximum(squared - tf.square(shift), 0)
            spread[id(layer.moving_variance)] = variance / (1 - layer.momentum)
        return spread

    def _positions(self) -> dict[int, str]:
        return {id(v): str(index) for index, v in enumerate(self._written)}


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
        weight = batch.num_rows / batch.global_size
        contributions = {
            index: _share(_contribution(change), weight, batch.replica)
            for index, change in written.items()
        }
        decays = {
            index: _share(change.decay, weight, batch.replica)
            for index, change in written.items()
            if change.new.dtype.is_floating
        }
        position = self._positions()
        shifts, squares = {}, {}
        for index, layer in enumerate(self._normalizations):
            mean = written.get(position[id(layer.moving_mean)])
            if mean is not None:
                shift = mean.new - mean.old
                shifts[str(index)] = _share(shift, weight, batch.replica)
                squares[str(index)] = _share(tf.square(shift), weight, batch.replica)
        return {
            "decays": decays,
            "shifts": shifts,
            "squared_shifts": squares,
            "values": contributions,
        }

    def assign(self, summed: dict[str, Any]) -> None:
        """Applies contributions, each to the value that its variable has then."""
        self._assigned = [
            *(self._variables[int(index)] for index in sorted(summed["decays"])),
            *(
                self._normalizations[int(i)].moving_mean
                for i in sorted(summed["shifts"])
            ),
            *(
                self._normalizations[int(i)].moving_variance
                for i in sorted(summed["squared_shifts"])
            ),
            *(self._variables[int(index)] for index in sorted(summed["values"])),
        ]
        spread = {}
        for index, squared in summed["squared_shifts"].items():
            layer = self._normalizations[int(index)]
            between = tf.maximum(squared - tf.square(summed["shifts"][index]), 0)
            spread[id(layer.moving_variance)] = between / (1 - layer.momentum)
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
            with tf.init_scope(), tf.device(variable.device):
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._operands[kind] = tf.Variable(zeros, trainable=False)
        return self._operands[kind]


def layer_state_of(model: keras.Model, updates_overlap: bool) -> LayerState:
    """Returns the state of a model's layers.

    Args:
      model: Built model.
      updates_overlap: True if an update may change the state of a step under way.
    """
    return OverlappingLayerState(model) if updates_overlap else LayerState(model)


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


def _share(value: tf.Tensor, weight: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
    if value.dtype.is_floating:
        return value * tf.cast(weight, value.dtype)
    if value.dtype.is_bool:
        value = tf.cast(value, tf.int32)
    return value * tf.cast(tf.equal(replica, 0), value.dtype)


def assign_everywhere(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns, in a replica context, a value that is equal on all replicas.

    Args:
      variable: Variable of the current strategy.
      value: New value.
    """

    def assign(strategy, variable, value):  # type: ignore[no-untyped-def]
        # Assigns every copy without a reduction over replicas.
        strategy.extended.update(
            variable, lambda copy, new: copy.assign(new), args=(value,), group=False
        )

    tf.distribute.get_replica_context().merge_call(assign, args=(variable, value))
