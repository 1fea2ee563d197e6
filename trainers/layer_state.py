"""Non-trainable variables that training changes, such as moving averages.

During a step layers write them into a scope and not into the variables. Each
replica's new values then become shares of a sum, like gradients, and the
variables are assigned once, after the sum. So all replicas leave their trace, and
no variable is written from several replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.base import Batch
from strategies.library_internals import flat_layers
from trainers.randomness import seed_states


def sums_over_replicas(layer: keras.layers.Layer) -> bool:
    """Whether a layer's replicas sum among themselves while they compute."""
    normalizes = isinstance(layer, keras.layers.BatchNormalization)
    return normalizes and layer.synchronized


class LayerState:
    """Splits the new values of a model's state into shares and joins their sum.

    Floating point values are averaged, weighted by each share's examples; of
    integers the first replica's value is taken. A moving variance also needs the
    spread *between* the replicas' means: with batch means m_r over shares w_r,
    variance = sum(w_r variance_r) + sum(w_r m_r^2) - (sum(w_r m_r))^2
    (the law of total variance). So the moving statistics are those of the global
    batch, even where each replica has normalized with its own rows.
    """

    def __init__(self, model: keras.Model):
        seeds = {id(state) for state in seed_states(model)}
        self._variables = [
            v for v in model.non_trainable_variables if id(v) not in seeds
        ]
        self._normalizations = [
            layer
            for layer in flat_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization)
            and layer.built
            # Keras 3.12, the newest for Python 3.10, has no renormalization yet.
            and not getattr(layer, "renorm", False)
        ]
        self._assigned: list[keras.Variable] = []

    @property
    def variables(self) -> Sequence[keras.Variable]:
        """All that are not trained, those of random layers left out."""
        return self._variables

    @property
    def assigned(self) -> Sequence[keras.Variable]:
        """Whose each tensor of a share is, in the order of `tf.nest.flatten`.

        It is known once `assign` has been traced.
        """
        return self._assigned

    def written(
        self,
        scope: keras.StatelessScope,
        mapped: Sequence[tuple[keras.Variable, tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """New values that layers wrote in a scope, by a variable's position.

        Args:
          scope: in which the layers ran on a replica's rows.
          mapped: values that the scope was given.
        """
        given = {id(variable): value for variable, value in mapped}
        current = {
            str(index): (scope.get_current_value(variable), given.get(id(variable)))
            for index, variable in enumerate(self._variables)
        }
        return {index: new for index, (new, old) in current.items() if new is not old}

    def shares(self, written: dict[str, tf.Tensor], batch: Batch) -> dict[str, Any]:
        """One replica's part of the new values.

        Args:
          written: by its layers.
          batch: tells how many rows count and which replica this is.
        """
        weight = batch.num_rows / batch.global_size
        values = {
            index: _share(value, weight, batch.replica)
            for index, value in written.items()
        }
        position = self._positions()
        shifts = {}
        for index, layer in enumerate(self._normalizations):
            mean = written.get(position[id(layer.moving_mean)])
            if mean is not None:
                shift = mean - layer.moving_mean.value
                shifts[str(index)] = tf.cast(weight, shift.dtype) * tf.square(shift)
        return {"values": values, "squared_shifts": shifts}

    def assign(self, summed: dict[str, Any]) -> None:
        """Writes the variables from the sum of all shares."""
        shifts, values = (sorted(summed[k]) for k in ("squared_shifts", "values"))
        self._assigned = [
            *(self._normalizations[int(index)].moving_variance for index in shifts),
            *(self._variables[int(index)] for index in values),
        ]
        spread = self._spread_between_replicas(summed)
        for index, value in summed["values"].items():
            variable = self._variables[int(index)]
            assign_everywhere(variable.value, value + spread.get(id(variable), 0))

    def _spread_between_replicas(self, summed: dict[str, Any]) -> dict[int, tf.Tensor]:
        """By variable, what to add to each moving variance.

        A moving mean moves by shift = (1 - momentum) (m - old), so the variance of
        the replicas' means is that of their shifts over (1 - momentum)^2, of which
        a moving variance takes up (1 - momentum).
        """
        position = self._positions()
        spread = {}
        for index, squared in summed["squared_shifts"].items():
            layer = self._normalizations[int(index)]
            mean = summed["values"][position[id(layer.moving_mean)]]
            shift = mean - layer.moving_mean.value
            variance = tf.maximum(squared - tf.square(shift), 0)
            spread[id(layer.moving_variance)] = variance / (1 - layer.momentum)
        return spread

    def _positions(self) -> dict[int, str]:
        return {id(v): str(index) for index, v in enumerate(self._variables)}


def _share(value: tf.Tensor, weight: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
    if value.dtype.is_floating:
        return value * tf.cast(weight, value.dtype)
    return value * tf.cast(tf.equal(replica, 0), value.dtype)


def assign_everywhere(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns in a replica context a value that is the same on all replicas."""

    def assign(strategy, variable, value):  # type: ignore[no-untyped-def]
        strategy.extended.update(
            variable, lambda copy, new: copy.assign(new), args=(value,), group=False
        )

    tf.distribute.get_replica_context().merge_call(assign, args=(variable, value))
