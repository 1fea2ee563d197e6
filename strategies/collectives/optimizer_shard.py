"""One worker's part of an optimizer: slices of the weights, and of the state."""

from collections.abc import Callable, Collection, Iterable, Sequence

import keras
import tensorflow as tf

from strategies.collectives.buckets import Span
from strategies.common.private_apis.optimizer_slices import (
    slice_like,
    state_by_weight,
    update_without_gradients,
    updates_slices,
)
from strategies.common.private_apis.variables import copies_of, make_releasable
from strategies.common.tracing import outside_of_traces
from strategies.inner_loop.reduction import clipped


class OptimizerShard:
    """An optimizer that updates some elements of the weights, with only their state.

    Between calls of the inner loop its variables are whole, as under all other
    strategies. While steps run they are empty, and this worker holds slices.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        weights: Sequence[keras.Variable],
        spans: Sequence[Span],
        clip_global_norm: float | None,
        rewritten: Callable[[], Collection[keras.Variable]] = tuple,
    ):
        """Makes the slices of weights and state; the state stays whole until `take`.

        Args:
          optimizer: Optimizer that was built for the weights, and updates each element
            by itself.
          weights: All trainable variables.
          spans: Elements of this worker, at most one span for each weight.
          clip_global_norm: Norm of all gradients to which they are scaled down if it is
            larger; None not to.
          rewritten: Function that returns the weights that layers write in a step,
            called while a step is traced, after the writes.
        """
        by_index = {span.index: span for span in spans}
        self._optimizer = optimizer
        self._weights = weights
        self._clip_global_norm = clip_global_norm
        self._rewritten = rewritten
        # A weight of which this worker has no element has an empty slice.
        self._spans = [
            by_index.get(index, Span(index, 0, 0)) for index in range(len(weights))
        ]
        with outside_of_traces():
            self._slices = [
                slice_like(weight, span.stop - span.start)
                for weight, span in zip(weights, self._spans, strict=True)
            ]
            self._kinds = state_by_weight(optimizer, weights)
            self.whole = [[make_releasable(v) for v in kind] for kind in self._kinds]
            self.state = [
                [
                    slice_like(variable, span.stop - span.start).value
                    for variable, span in zip(kind, self._spans, strict=True)
                ]
                for kind in self._kinds
            ]

    @property
    def weights(self) -> list[tf.Variable]:
        """Slices of the weights, one for each weight."""
        return [part.value for part in self._slices]

    def held_of(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """Returns the optimizer's variables while steps run: whole ones, and slices."""
        # Variables of which this worker has a slice have no fixed shape.
        whole = [v for v in variables if v.shape.is_fully_defined()]
        return [*whole, *(part for kind in self.state for part in kind)]

    def take(self) -> None:
        """Copies this worker's slices of the state, and releases the whole state."""
        for whole, parts in zip(self.whole, self.state, strict=True):
            for variable, part, span in zip(whole, parts, self._spans, strict=True):
                part.assign(_elements(variable, span))
                # The memory is freed only if no tensor of the full size stays behind.
                variable.assign(tf.zeros([0], variable.dtype))

    def read_weights(self) -> None:
        """Copies this worker's slices of the weights, before each call of steps.

        Callbacks and checkpoints may have changed the weights since the last call.
        """
        self._read(range(len(self._weights)))

    def _read(self, indices: Iterable[int]) -> None:
        for index in indices:
            value = copies_of(self._weights[index].value)[0]
            self._slices[index].value.assign(_elements(value, self._spans[index]))

    @property
    def needs_norm(self) -> bool:
        """True if an update depends on the norm of all gradients."""
        return self._clip_global_norm is not None

    def apply(
        self, gradients: Sequence[tf.Tensor | None], norm: tf.Tensor | None
    ) -> list[tf.Tensor]:
        """Updates the state, and returns the new values of all slices of weights.

        Args:
          gradients: Gradient of each slice; None where the loss does not depend on it.
          norm: Norm of all gradients, a scalar; None unless it is needed.
        """
        if norm is not None and self._clip_global_norm is not None:
            gradients = clipped(gradients, norm, self._clip_global_norm)
        # Within a call of steps only these change by more than this update. All others
        # need not be copied in each step: 42 MB for each of two workers with 84 MB.
        rewritten = {id(weight) for weight in self._rewritten()}
        self._read(
            index
            for index, weight in enumerate(self._weights)
            if weight.constraint is not None or id(weight) in rewritten
        )
        # An optimizer refuses empty weights, and skips those without a gradient.
        chosen = [
            (gradient, part)
            for gradient, part in zip(gradients, self._slices, strict=True)
            if part.shape[0] and gradient is not None
        ]
        weights = list(zip(self._weights, self._slices, strict=True))
        state = [
            pair
            for kind, parts in zip(self._kinds, self.state, strict=True)
            for pair in zip(kind, parts, strict=True)
        ]
        with updates_slices(self._optimizer, weights, state):
            if chosen:
                present, parts = zip(*chosen, strict=True)
                self._optimizer.apply(list(present), list(parts))
            else:
                update_without_gradients(self._optimizer)
        return [tf.convert_to_tensor(part.value) for part in self._slices]

    def constrain(self, has_gradient: Sequence[bool]) -> None:
        """Applies the constraints of whole weights, which may depend on their norms.

        Args:
          has_gradient: True for each weight with a gradient; `fit` constrains no other.
        """
        for weight, is_updated in zip(self._weights, has_gradient, strict=True):
            if is_updated and weight.constraint is not None:
                weight.assign(weight.constraint(weight))


def _elements(variable: tf.Variable, span: Span) -> tf.Tensor:
    """Returns the elements of a span of a flattened variable."""
    vector = tf.reshape(variable, [-1])[span.start : span.stop]
    return tf.ensure_shape(vector, [span.stop - span.start])
