"""What happens once a step, after all shares are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.base import Shares
from trainers.histograms import histogram, no_histogram
from trainers.layer_state import LayerState
from trainers.sparse import sum_duplicates


class ModelUpdate:
    """Clips the summed gradient and changes the weights. Satisfies `Update`."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: tf.Variable,
        layer_state: LayerState,
        clip_global_norm: float | None,
    ):
        """Keeps what an update changes.

        Args:
          model: its weights.
          optimizer: built, and not reducing gradients by itself.
          step: int64 scalar, the number of applied updates.
          layer_state: of the model.
          clip_global_norm: the summed gradient is scaled down to this norm if it
            is larger (Pascanu et al., On the difficulty of training recurrent
            neural networks, 2012). Clipping before the sum would bound each
            replica's part and let the sum be up to N times larger.
        """
        self._model = model
        self._optimizer = optimizer
        self._step = step
        self._clip_global_norm = clip_global_norm
        self._layer_state = layer_state

    def apply(self, shares: Shares) -> None:
        gradients = [sum_duplicates(gradient) for gradient in shares.gradients]
        if self._clip_global_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_global_norm)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        self._layer_state.assign(shares.state)

    def count(self) -> tf.Tensor:
        return self._step.assign_add(1, read_value=True)

    def applied_updates(self) -> tf.Tensor:
        return self._step.read_value()

    def devices(self) -> list[str]:
        return [v.value.device for v in self._model.trainable_variables]

    def observe(self, shares: Shares, closely: tf.Tensor) -> dict[str, tf.Tensor]:
        """Norms of the summed gradient and of the weights; histograms of gradients.

        Args:
          shares: the sum over replicas, before clipping.
          closely: bool scalar; without it the histograms are zeros.
        """
        weights = [v.value for v in self._model.trainable_variables]
        gradients = [sum_duplicates(gradient) for gradient in shares.gradients]
        details = {
            "gradient_norm": tf.linalg.global_norm(gradients),
            "weight_norm": _norm_where_they_are(weights),
        }
        named = zip(self._model.trainable_variables, gradients, strict=True)
        for variable, gradient in named:
            if gradient is not None:
                details[f"gradients/{variable.path}"] = _histogram_if(closely, gradient)
        return details


def _norm_where_they_are(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """The norm of all variables together, one number of each leaving its device."""
    squares = []
    for variable in variables:
        with tf.device(variable.device):
            squares.append(tf.nn.l2_loss(variable))
    return tf.sqrt(2 * tf.add_n(squares))


def _histogram_if(wanted: tf.Tensor, gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.cond(wanted, lambda: histogram(values), no_histogram)
