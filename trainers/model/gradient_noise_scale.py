"""What replicas' gradients say beside their sum: how much of it is noise.

McCandlish, Kaplan, Amodei and others, An Empirical Model of Large-Batch Training, 2018,
https://arxiv.org/abs/1812.06162, appendix A.1: the gradient of few examples is longer
than that of many by its noise. From both follow the length of the true gradient, |G|^2,
and the noise of one example, S. A batch of S / |G|^2 examples has as much of one as of
the other: much below it twice the batch halves the steps, much above it helps no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, ReplicaStep, Shares, StepResults

PREFIX = "replica/"
_SQUARE, _COUNT, _LOSS = f"{PREFIX}square", f"{PREFIX}count", f"{PREFIX}loss_"


class WithStatistics:
    """A replica's step that tells of its own gradient, too. Satisfies `ReplicaStep`."""

    def __init__(self, step: ReplicaStep, num_shares: int):
        """Traces nothing yet.

        Args:
          step: computes a replica's dense shares.
          num_shares: into how many a global batch is divided.
        """
        self._step = step
        self._num_shares = num_shares

    def __call__(self, batch: Batch) -> Shares:
        shares = self._step(batch)
        rows = tf.cast(batch.num_rows, tf.float64)
        has_rows = tf.cast(rows > 0, tf.float64)
        # A share is divided by the size of the global batch; its own mean is longer.
        scale = tf.cast(batch.global_size, tf.float64) / tf.maximum(rows, 1.0)
        loss = shares.sums["loss"] / tf.maximum(rows, 1.0)
        own = tf.one_hot(batch.replica, self._num_shares, dtype=tf.float64)
        losses = tf.unstack(own * loss * has_rows)
        return shares._replace(
            sums={
                **shares.sums,
                _SQUARE: has_rows * tf.square(scale) * _square(shares.gradients),
                _COUNT: has_rows,
                **{f"{_LOSS}{index}": one for index, one in enumerate(losses)},
            }
        )


def _square(gradients: Any) -> tf.Tensor:
    """Of the length of all gradients together, in double precision."""
    squares = [
        2 * tf.cast(tf.nn.l2_loss(gradient), tf.float64)
        for gradient in gradients
        if gradient is not None
    ]
    return tf.add_n(squares)


class ReplicaStatistics:
    """Means over the reports of a run, of which one alone is too noisy."""

    def __init__(self) -> None:
        self._num_reports = 0
        self._gradient_square = 0.0
        self._noise = 0.0

    def scalars(self, results: StepResults) -> dict[str, float]:
        """Of the last step, and the noise scale so far, by tag; none if not measured.

        Args:
          results: of steps of which the last was observed.
        """
        sums = {n: float(v[-1]) for n, v in results.sums.items() if len(v)}
        if _COUNT not in sums:
            return {}
        losses = {name: value for name, value in sums.items() if name.startswith(_LOSS)}
        count, norm = sums[_COUNT], results.details.get("gradient_norm")
        if norm is None or count < 2:
            return losses
        found = dict(losses)
        small, large = sums[_SQUARE] / count, float(norm) ** 2
        if small > 0:
            # Of all pairs of different replicas: the square of their sum has all pairs.
            product = (count * large - small) / (count - 1)
            found[f"{PREFIX}gradient_cosine"] = product / small
        self._learn(small, large, sums["examples"], count)
        if self._gradient_square > 0:
            found["gradient_noise_scale"] = self._noise / self._gradient_square
        return found

    def _learn(self, small: float, large: float, examples: float, count: float) -> None:
        few = examples / count
        gradient_square = (examples * large - few * small) / (examples - few)
        noise = (small - large) / (1 / few - 1 / examples)
        self._num_reports += 1
        share = 1 / self._num_reports
        self._gradient_square += share * (gradient_square - self._gradient_square)
        self._noise += share * (noise - self._noise)


def without_statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sums that are numerators of means over examples, and their denominator."""
    return {n: value for n, value in values.items() if not n.startswith(PREFIX)}
