"""Gradient noise scale, estimated from the replicas' gradients.

McCandlish, Kaplan, Amodei and others, An Empirical Model of Large-Batch Training, 2018,
https://arxiv.org/abs/1812.06162, appendix A.1: noise makes the gradient of few examples
longer than the gradient of many examples. The two lengths determine the squared length
of the true gradient, |G|^2, and the noise of one example, S. A batch of S / |G|^2
examples contains as much noise as signal: far below it, twice the batch halves the
steps; far above it, a larger batch does not help.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs, StepResults
from trainers.run_dir.train_state import NoiseMeans

PREFIX = "replica/"
_SQUARE, _COUNT, _LOSS = f"{PREFIX}square", f"{PREFIX}count", f"{PREFIX}loss_"
# Whether the gradient of a replica, which may be late, is in the sum.
_COUNTED = f"{PREFIX}counted_"
# Sums over replicas of 1 / rows, of rows^2, and of rows^2 times the squared length of
# the gradient.
_INVERSE, _ROWS = f"{PREFIX}inverse_rows", f"{PREFIX}squared_rows"
_PARTS = f"{PREFIX}squared_parts"


class WithStatistics:
    """Replica step that also reports its own gradient. Satisfies `ReplicaFunction`."""

    def __init__(self, step: ReplicaFunction, num_replicas: int):
        """Stores a step with dense gradients; traces nothing."""
        self._step = step
        self._num_replicas = num_replicas

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        outputs = self._step(batch)
        rows = tf.cast(batch.num_rows, tf.float64)
        has_rows = tf.cast(rows > 0, tf.float64)
        # A replica's gradient is a sum over its rows, divided by the global batch size.
        size = tf.cast(batch.global_size, tf.float64)
        square = has_rows * tf.square(size) * _square(outputs.gradients)
        loss = outputs.sums["loss"] / tf.maximum(rows, 1.0)
        # One entry for each replica, so that the sum over replicas keeps the losses
        # apart.
        own = tf.one_hot(batch.replica, self._num_replicas, dtype=tf.float64) * has_rows
        losses, counted = tf.unstack(own * loss), tf.unstack(own)
        return outputs._replace(
            sums={
                **outputs.sums,
                _SQUARE: square / tf.square(tf.maximum(rows, 1.0)),
                _COUNT: has_rows,
                _INVERSE: has_rows / tf.maximum(rows, 1.0),
                _ROWS: tf.square(rows),
                _PARTS: square,
                **{f"{_LOSS}{index}": one for index, one in enumerate(losses)},
                **{f"{_COUNTED}{index}": one for index, one in enumerate(counted)},
            }
        )


def _square(gradients: Any) -> tf.Tensor:
    """Returns the squared norm of all gradients together, in float64."""
    # l2_loss is half the sum of squares.
    squares = [
        2 * tf.cast(tf.nn.l2_loss(gradient), tf.float64)
        for gradient in gradients
        if gradient is not None
    ]
    return tf.add_n(squares)


class ReplicaStatistics:
    """Running means of the noise estimates, because a single report is too noisy."""

    def __init__(self) -> None:
        self._means = NoiseMeans()

    def state(self) -> dict[str, Any]:
        """Returns the means for a checkpoint; empty before the first report."""
        means = self._means
        return {"noise_scale": dataclasses.asdict(means)} if means.num_reports else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues with the means of a checkpoint, which may have none."""
        self._means = NoiseMeans(**state.get("noise_scale", {}))

    def scalars(self, results: StepResults) -> dict[str, float]:
        """Returns the statistics of the last step and the noise scale so far, by tag.

        The last step has been observed. Empty if the statistics were not measured.
        """
        sums = {
            name: float(values[-1])
            for name, values in results.sums.items()
            if values.ndim == 1 and len(values)
        }
        if _COUNT not in sums:
            return {}
        losses = {
            name: value
            for name, value in sums.items()
            if name.startswith(_LOSS) and sums[name.replace(_LOSS, _COUNTED)]
        }
        count, norm = sums[_COUNT], results.details.get("gradient_norm")
        if norm is None or count < 2:
            return losses
        found = dict(losses)
        small, large = sums[_SQUARE] / count, float(norm) ** 2
        if small > 0:
            # The mean product of two different replicas' gradients, weighted by the
            # product of their rows: |mean|^2 is the sum over all pairs, also of a
            # replica with itself. With backup workers the rows that have arrived are
            # not a batch.
            whole = sums["examples"] ** 2
            product = (whole * large - sums[_PARTS]) / (whole - sums[_ROWS])
            found[f"{PREFIX}gradient_cosine"] = product / small
        # The mean of S / rows over replicas is S / few.
        self._learn(small, large, sums["examples"], few=count / sums[_INVERSE])
        # The estimate can be negative while it is dominated by noise.
        means = self._means
        if means.gradient_square > 0:
            found["gradient_noise_scale"] = means.noise / means.gradient_square
        return found

    def _learn(self, small: float, large: float, examples: float, few: float) -> None:
        # Appendix A.1 with E|G_B|^2 = |G|^2 + S / B, for B = few and B = examples.
        gradient_square = (examples * large - few * small) / (examples - few)
        noise = (small - large) / (1 / few - 1 / examples)
        # A norm beyond single precision would make all later means infinite.
        if not (math.isfinite(gradient_square) and math.isfinite(noise)):
            return
        means = self._means
        means.num_reports += 1
        # Running means of the numerator and the denominator: the mean of ratios would
        # be biased.
        share = 1 / means.num_reports
        means.gradient_square += share * (gradient_square - means.gradient_square)
        means.noise += share * (noise - means.noise)


def without_statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sums without this module's statistics.

    The rest are numerators of means over examples, and their denominator.
    """
    return {n: value for n, value in values.items() if not n.startswith(PREFIX)}
