"""Outer optimizer of replicas that train alone between two averages.

The replicas' own optimizer, the inner one, changes each copy of the weights for some
steps. Then the outer gradient, which is the anchor (the weights of the last average)
minus the mean of the copies, goes into one step of the outer optimizer. This step
changes the anchor, and every replica continues from the result.

The method is DiLoCo with Nesterov momentum (Douillard et al., DiLoCo: Distributed
Low-Communication Training of Language Models, 2023, arXiv 2311.08105, algorithm 1), and
FedOpt in federated learning (Reddi et al., 2021). With sgd, learning rate 1 and no
momentum the result is the mean of the copies, which is local SGD.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.inner_loop.all_reduce import sum_by_type
from strategies.inner_loop.reduction import bytes_of


class OuterOptimizer:
    """SGD, with or without Nesterov momentum, on the average change of the weights."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        weights: Sequence[tf.Variable],
        *,
        learning_rate: float,
        momentum: float,
        is_nesterov: bool,
        send_as: tf.DType | None,
    ):
        """Makes the anchor and the momentum, on the device of every replica.

        Changes are sent in a type of their own if `send_as` is given.
        """
        self._strategy = strategy
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._is_nesterov = is_nesterov
        self._send_as = send_as
        num_slots = 2 if momentum else 1
        # The anchor, then the momentum if there is one. They have the same values on
        # all replicas, because all apply the same sum.
        with strategy.scope():
            self._slots = {
                weight.ref(): [
                    tf.Variable(tf.zeros(weight.shape, weight.dtype), trainable=False)
                    for _ in range(num_slots)
                ]
                for weight in weights
            }

    def variables(self) -> list[tf.Variable]:
        """Returns all variables that a checkpoint needs, in a fixed order."""
        return [slot for slots in self._slots.values() for slot in slots]

    def changes(self, variable: tf.Variable) -> bool:
        """Returns whether this optimizer changes a variable."""
        return variable.ref() in self._slots

    def sent_bytes(self, weight: tf.Variable) -> int:
        """Returns the bytes of one replica's change of a weight, as it is sent."""
        return bytes_of([weight], self._send_as)

    def restart(self, variables: Sequence[tf.Variable]) -> None:
        """Takes the present values of weights as their anchors, without momentum."""
        for weight in filter(self.changes, variables):
            for copy, anchor, *momentum in self._on_each_device(weight):
                with tf.device(copy.device):
                    anchor.assign(copy)
                    for velocity in momentum:
                        velocity.assign(tf.zeros_like(velocity))

    def average(self, weights: Sequence[tf.Variable]) -> None:
        """Applies the outer gradient of some weights, which differ between replicas."""

        def on_each_replica() -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            # The difference is sent, not the weight: it is small, so that the error of
            # a type of few bits is relative to the change, not to the weight.
            return sum_by_type(context, [self._own_part(weight) for weight in weights])

        gradients = self._strategy.run(on_each_replica)
        for weight, gradient in zip(weights, gradients, strict=True):
            for copy, change, anchor, *momentum in self._on_each_device(
                weight, gradient
            ):
                with tf.device(copy.device):
                    step = self._step(tf.cast(change, copy.dtype), momentum)
                    copy.assign(anchor.assign_sub(self._learning_rate * step))

    def _own_part(self, weight: tf.Variable) -> tf.Tensor:
        """Returns a replica's summand of the outer gradient, in the type to be sent."""
        anchor = self._slots[weight.ref()][0]
        # A collective can only sum, so that each replica divides its part.
        part = (anchor - weight) / self._strategy.num_replicas_in_sync
        return tf.cast(part, self._send_as or weight.dtype)

    def _step(self, gradient: tf.Tensor, momentum: Sequence[tf.Variable]) -> tf.Tensor:
        """Returns the step of one weight, and changes its momentum if it has one.

        The formulas are from `torch.optim.SGD`, which the DiLoCo paper's settings are
        for. Keras's nesterov is the same at a constant learning rate.
        """
        if not momentum:
            return gradient
        (velocity,) = momentum
        moved = self._momentum * velocity + gradient
        velocity.assign(moved)
        return gradient + self._momentum * moved if self._is_nesterov else moved

    def _on_each_device(
        self, weight: tf.Variable, *further: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Yields, for each device of this process, the weight's copy and its slots.

        Args:
          weight: Weight with a copy on each replica.
          *further: Values with one part for each replica, yielded in between.
        """
        values = (weight, *further, *self._slots[weight.ref()])
        parts = map(self._strategy.experimental_local_results, values)
        return zip(*parts, strict=True)
