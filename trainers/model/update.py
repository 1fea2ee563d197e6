"""Weight update of a step, after the all-reduce."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.collectives.buckets import Span
from strategies.collectives.optimizer_shard import OptimizerShard
from strategies.common.text import unique_names
from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.reduction import clipped, widened, with_known_shapes
from trainers.config.config import Config
from trainers.model.histograms import histogram
from trainers.model.layer_state import LayerState
from trainers.model.optimizers.loss_scale import (
    LOSS_SCALE,
    LossScale,
    unscaled,
    wrapper_of,
)
from trainers.model.optimizers.several import variables_of
from trainers.model.sparse_gradients import as_dense, embeddings_of, sum_duplicates

# Prefixes of the names that `ModelUpdate.observe` returns in addition to norms.
HISTOGRAMS = "gradients/"
RECORDED = "recorded/"


class ModelUpdate:
    """Clipping of the summed gradient and update of the weights. Satisfies `Update`."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: tf.Variable,
        layer_state: LayerState,
        config: Config,
        loss_scale: LossScale | None,
        merge_rows: Collection[int] | None,
    ):
        """Stores the variables that an update changes.

        Args:
          model: Model whose weights are updated.
          optimizer: Built optimizer that does not reduce gradients itself.
          step: int64 scalar, the number of applied updates.
          layer_state: State of the model's layers.
          config: Configuration of the run.
          loss_scale: Factor of the loss that is differentiated; None for one.
          merge_rows: Places of the sparse gradients whose rows of one index are added
            up before the optimizer sees them; None for all. `fit` adds up none: the
            optimizers of Keras that square gradients square each row by itself
            (tests/test_tensorflow_facts.py).
        """
        self.times_phases = config.report.step_phases
        self._merge_rows = merge_rows
        self._model = model
        self._optimizer = optimizer
        self._step = step
        self._clip_global_norm = config.optimizer.clip_global_norm
        self._layer_state = layer_state
        self._record_gradients = config.report.record_steps
        self._sparse_gradients = config.optimizer.sparse_gradients
        self._loss_scale = loss_scale

    def apply(self, outputs: ReplicaOutputs) -> None:
        self.apply_prepared(self.prepare(outputs))

    def prepare(self, outputs: ReplicaOutputs) -> ReplicaOutputs:
        summed = [sum_duplicates(gradient) for gradient in outputs.gradients]
        gradients = summed
        if self._merge_rows is not None:
            gradients = list(outputs.gradients)
            for place in self._merge_rows:
                gradients[place] = summed[place]
        # After the sum: clipping before it would bound each replica's part, and the sum
        # could be up to N times larger (Pascanu et al., On the difficulty of training
        # recurrent neural networks, 2012).
        if self._clip_global_norm is not None:
            # `observe` reports the norm of summed rows, so this one is too, even if
            # rows stay apart.
            norm = _global_norm(summed)
            gradients = clipped(gradients, norm, self._clip_global_norm)
        return outputs._replace(gradients=gradients)

    def apply_prepared(self, prepared: ReplicaOutputs) -> None:
        # First, because a layer may have written weights that are trained.
        self.assign_layer_state(prepared.state)
        weights = self._model.trainable_variables
        if wrapper_of(self._model) is not None:
            # As LossScaleOptimizer calls the optimizer inside of it.
            self._optimizer.apply(list(prepared.gradients), weights)
        else:
            # As `fit` does: a class may override this method, and not `apply`.
            pairs = zip(prepared.gradients, weights, strict=True)
            self._optimizer.apply_gradients(list(pairs))

    def adapt_loss_scale(
        self, sums: Mapping[str, tf.Tensor], is_finite: tf.Tensor
    ) -> tf.Tensor | None:
        if self._loss_scale is None:
            return None
        used = sums[LOSS_SCALE] / sums["examples"]
        overflowed = tf.math.is_finite(sums["loss"]) & ~is_finite
        return self._loss_scale.adapt(used, is_finite, overflowed)

    def increment_step(self) -> tf.Tensor:
        return self._step.assign_add(1, read_value=True)

    def applied_updates(self) -> tf.Tensor:
        return self._step.read_value()

    def counter_device(self) -> str:
        return self._step.device

    def devices(self) -> list[str]:
        return [weight.device for weight in self.trainable_weights()]

    def dense_gradients(self) -> list[tf.TensorSpec | None]:
        layers = embeddings_of(self._model) if self._sparse_gradients else []
        of_rows = {id(shard) for layer in layers for shard in layer.shards}
        return [
            None if id(v) in of_rows else tf.TensorSpec(v.shape, v.dtype)
            for v in self._model.trainable_variables
        ]

    def gradients_of(self, loss: tf.Tensor) -> list[Any]:
        """Returns the gradient of a scalar for each trainable variable, in a graph."""
        weights = self.trainable_weights()
        # A tape would compute all gradients on the current device. tf.gradients
        # computes the gradient of each operation on the operation's device, so that
        # each tower differentiates its own part
        # (tensorflow/python/ops/gradients_impl.py, `gradients_v2`).
        gradients = tf.gradients(loss, weights)
        if self._loss_scale is not None:
            gradients = unscaled(gradients, self._loss_scale.read())
        if not self._sparse_gradients:
            gradients = as_dense(gradients)
        return with_known_shapes(gradients, weights)

    def shard(self, spans: Sequence[Span]) -> OptimizerShard:
        return OptimizerShard(
            self._optimizer,
            self._model.trainable_variables,
            spans,
            self._clip_global_norm,
            lambda: self._layer_state.assigned,
        )

    def assign_layer_state(self, state: Any) -> None:
        self._layer_state.assign(state)

    def weights(self) -> list[tf.Variable]:
        state = [variable.value for variable in self._layer_state.variables]
        return [*self.trainable_weights(), *(v for v in state if v.dtype.is_floating)]

    def trainable_weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self._model.trainable_variables]

    def optimizer_state(self) -> list[tf.Variable]:
        values = [variable.value for variable in variables_of(self._optimizer)]
        return [value for value in values if value.dtype.is_floating]

    def variables(self) -> list[tf.Variable]:
        variables = [*self._layer_state.variables, *variables_of(self._optimizer)]
        values = [variable.value for variable in variables]
        return [*self.trainable_weights(), *values, self._step]

    def weight_norm(self) -> tf.Tensor:
        return _norm_where_they_are(self.trainable_weights())

    def observe(
        self, outputs: ReplicaOutputs, with_histograms: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the norm of the summed gradient and histograms of the gradients.

        If gradients are recorded, the result also contains them; all are those before
        clipping. Without `with_histograms` the histograms are zeros.
        """
        weights = self._model.trainable_variables
        gradients = [sum_duplicates(gradient) for gradient in outputs.gradients]
        details = {"gradient_norm": _global_norm(gradients)}
        names = unique_names([weight.path for weight in weights])
        for name, weight, gradient in zip(names, weights, gradients, strict=True):
            if gradient is None:
                continue
            sparse = isinstance(gradient, tf.IndexedSlices)
            values = gradient.values if sparse else gradient
            details[HISTOGRAMS + name] = histogram(values, wanted=with_histograms)
            if self._record_gradients:
                # The static shape of a converted IndexedSlices is unknown; tf.reshape
                # restores it.
                dense = tf.convert_to_tensor(gradient)
                details[RECORDED + name] = tf.reshape(dense, weight.shape)
        return details


def make_step_counter() -> tf.Variable:
    """Returns the counter of applied updates."""
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="applied_updates",
        # Only the first replica of a mirrored counter counts a step.
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _norm_where_they_are(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """Returns the norm of all variables; each device sends one number per variable."""
    squares = []
    for variable in variables:
        with tf.device(variable.device):
            # l2_loss is half the sum of squares, hence the factor 2 below.
            squares.append(tf.nn.l2_loss(widened(tf.convert_to_tensor(variable))))
    if len({square.dtype for square in squares}) > 1:
        squares = [tf.cast(square, tf.float64) for square in squares]
    return tf.sqrt(2 * tf.add_n(squares))


def _global_norm(gradients: Sequence[Any]) -> tf.Tensor:
    """Returns the norm of all together, in float64 if layers have several types."""
    present = [widened(gradient) for gradient in gradients if gradient is not None]
    if len({gradient.dtype for gradient in present}) < 2:
        return tf.linalg.global_norm(present)
    norms = [tf.cast(tf.linalg.global_norm([one]), tf.float64) for one in present]
    return tf.norm(tf.stack(norms))
