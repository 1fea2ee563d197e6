"""Non-trainable variables that training changes, such as moving averages.

During a step layers write them into a scope and not into the variables. Each
replica's new values then become summands, like gradients, and the
variables are assigned once, after the sum. So all replicas contribute, and
no variable is written from several replicas.

Where updates overlap, a layer computes its value from a state that others may have
changed since. Then the layer's change of its state is applied to the present value on
its device: `OverlappingLayerState`.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.types import Batch
from trainers.model.random_numbers.seeds import seed_states


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

    In all methods `mapped` are values that layers see in place of variables, and
    `written` are new values by a variable's position.
    """

    def __init__(self, model: keras.Model):
        seeds = {id(state) for state in seed_states(model)}
        self._variables = [
            v for v in model.non_trainable_variables if id(v) not in seeds
        ]
        # A layer may also write weights that are trained, as SpectralNormalization.
        self._writable = [*self._variables, *model.trainable_variables]
        self._normalizations = [
            layer
            for layer in flat_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization)
            and layer.built
            # One with a momentum of 1 keeps its statistics.
            and layer.momentum != 1
            and not layer.renorm
        ]
        # Positions of moving means by those of their layers.
        position = {id(v): str(index) for index, v in enumerate(self._writable)}
        self._moving_means = {
            str(index): position[id(layer.moving_mean)]
            for index, layer in enumerate(self._normalizations)
        }
        self._assigned: list[keras.Variable] = []

    @property
    def variables(self) -> Sequence[keras.Variable]:
        """Non-trainable variables, without the counters of random layers."""
        return self._variables

    @property
    def assigned(self) -> Sequence[keras.Variable]:
        """Variable of each summed tensor, in their order once they are flattened.

        The list is complete once `assign` has been traced.
        """
        return self._assigned

    def present(self) -> list[tf.Tensor] | None:
        """Returns the values that layers are to see; None for the variables' own."""
        return None

    @contextlib.contextmanager
    def followed(self, mapped: Mapped) -> Iterator[tf.GradientTape | None]:
        """Records operations on the state in the block; None if none is needed."""
        del mapped
        yield None

    def changes(
        self, written: dict[str, tf.Tensor], mapped: Mapped, tape: Any
    ) -> dict[str, Any]:
        """Returns the argument of `weight_by_shard`, with the tape of `followed`."""
        del mapped, tape
        return written

    def collect_updates(
        self, scope: keras.StatelessScope, mapped: Mapped
    ) -> dict[str, tf.Tensor]:
        """Returns the values that layers wrote in a scope, by the variables' places."""
        # A value that the scope was created with is not new.
        given = {id(variable): value for variable, value in mapped}
        current = {
            str(index): (scope.get_current_value(variable), given.get(id(variable)))
            for index, variable in enumerate(self._writable)
        }
        found = {index: new for index, (new, old) in current.items() if new is not old}
        for index, new in found.items():
            # What a layer computes from its inputs may have a shape that is not known.
            new.set_shape(self._writable[int(index)].shape)
        return found

    def by_position(self, values: Mapping[int, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns values by the variables' ids as `collect_updates` returns values."""
        return {
            str(index): values[id(variable)]
            for index, variable in enumerate(self._writable)
            if id(variable) in values
        }

    def rewritten(self, written: dict[str, Any]) -> dict[int, tf.Tensor]:
        """Returns the new values of weights that are trained, by the variable's id.

        As in `fit`, the gradient is with respect to the new value, and the optimizer
        changes that.
        """
        first = len(self._variables)
        return {
            id(self._writable[int(index)]): value
            for index, value in written.items()
            if int(index) >= first
        }

    def check_keeps_weights(self, written: dict[str, Any], how: str) -> None:
        """Refuses layers that write weights which are trained."""
        for variable in self._writable[len(self._variables) :]:
            if id(variable) in self.rewritten(written):
                raise UsageError(
                    f"{how} does not fit this model: a layer assigns "
                    f"{variable.path!r}, which is trained, in every step, as "
                    f"SpectralNormalization does; leave out {how}, or the layer."
                )

    def weight_by_shard(
        self, written: dict[str, tf.Tensor], batch: Batch
    ) -> dict[str, Any]:
        """Returns one replica's part of the new values, which `changes` returned."""
        squares = {i: tf.square(shift) for i, shift in self._shifts(written).items()}
        return {
            "values": weighted(written, batch),
            "squared_shifts": weighted(squares, batch),
        }

    def assign(self, summed: dict[str, Any]) -> None:
        """Assigns the variables from the sum of all replicas' contributions."""
        self._note_assigned(summed)
        shifts = self._shifts(summed["values"])
        spread = self._spread_between_replicas(summed["squared_shifts"], shifts)
        for index, value in summed["values"].items():
            variable = self._writable[int(index)]
            if variable.value.dtype.is_bool:
                value = tf.cast(value, tf.bool)
            else:
                value += spread.get(id(variable), 0)
            assign_everywhere(variable.value, value)

    def _note_assigned(self, summed: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes which variable each summed tensor is for."""
        targets = {
            "decays": self._writable,
            "shifts": [layer.moving_mean for layer in self._normalizations],
            "squared_shifts": [layer.moving_variance for layer in self._normalizations],
            "values": self._writable,
        }
        self._assigned = tf.nest.flatten(
            {
                kind: {index: targets[kind][int(index)] for index in values}
                for kind, values in summed.items()
            }
        )

    def _shifts(self, written: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the distance of each new moving mean from the old one.

        It is (1 - momentum) times the distance of the batch mean from the old mean.
        """
        return {
            index: written[mean] - self._writable[int(mean)].value
            for index, mean in self._moving_means.items()
            if mean in written
        }

    def _spread_between_replicas(
        self, squares: Mapping[str, tf.Tensor], shifts: Mapping[str, tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Returns the addition to each moving variance, by id of the variable.

        A moving mean changes by shift = (1 - momentum) (m - old). The variance of the
        replicas' means is therefore the variance of their shifts over (1 - momentum)^2;
        a moving variance includes (1 - momentum) of it.
        """
        spread = {}
        for index, squared in squares.items():
            layer = self._normalizations[int(index)]
            # Rounding can make the difference slightly negative.
            variance = tf.maximum(squared - tf.square(shifts[index]), 0)
            spread[id(layer.moving_variance)] = variance / (1 - layer.momentum)
        return spread


def weighted(values: Mapping[str, tf.Tensor], batch: Batch) -> dict[str, tf.Tensor]:
    """Returns one replica's summands of values that all replicas have.

    Integers and bools are the first replica's.
    """
    # Weights of all replicas sum to 1, unless each replica keeps its own state.
    if isinstance(batch.state_size, tuple):
        weight = batch.num_rows / batch.global_size
    else:
        # An empty shard has the state of the row that it carries.
        weight = tf.maximum(batch.num_rows, 1) / batch.state_size
    return {i: _summand(value, weight, batch.replica) for i, value in values.items()}


def _summand(value: tf.Tensor, weight: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
    if value.dtype.is_floating:
        return value * tf.cast(weight, value.dtype)
    if value.dtype.is_bool:
        value = tf.cast(value, tf.int32)
    return value * tf.cast(tf.equal(replica, 0), value.dtype)


def assign_everywhere(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns, in a replica context, a value that is equal on all replicas."""

    def assign(strategy, variable, value):  # type: ignore[no-untyped-def]
        # Assigns every copy without a reduction over replicas.
        strategy.extended.update(
            variable, lambda copy, new: copy.assign(new), args=(value,), group=False
        )

    tf.distribute.get_replica_context().merge_call(assign, args=(variable, value))
