"""Compressed sums with error feedback in NumPy, written from the papers.

All replicas are in one process, and nothing is packed.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# The sum, and the error that each replica keeps.
Summed = tuple[np.ndarray, list[np.ndarray]]
# A method makes these from the array that each replica would send without compression.
Method = Callable[[Sequence[np.ndarray]], Summed]


class PowerSgd:
    """Algorithm 1 of Vogels et al., 2019, with sums in the place of means."""

    def __init__(self, rank: int, columns: int, seed: int):
        # The algorithm leaves the start of the iteration open; it is the project's.
        start = tf.random.stateless_normal([columns, rank], [0, seed])
        self._q = start.numpy().astype(np.float64)

    def __call__(self, values: Sequence[np.ndarray]) -> Summed:
        shape = values[0].shape
        matrices = [value.reshape(-1, shape[-1]) for value in values]
        basis = np.linalg.qr(sum(m @ self._q for m in matrices))[0]
        parts = [m.T @ basis for m in matrices]
        self._q = sum(parts)
        errors = [
            (m - basis @ part.T).reshape(shape)
            for m, part in zip(matrices, parts, strict=True)
        ]
        return (basis @ self._q.T).reshape(shape), errors


class TopK:
    """The method of Stich et al., 2018, for one tensor."""

    def __init__(self, fraction: float):
        self._fraction = fraction

    def __call__(self, values: Sequence[np.ndarray]) -> Summed:
        sent = []
        for value in values:
            count = math.ceil(self._fraction * value.size)
            smallest = np.sort(np.abs(value).ravel())[-count]
            sent.append(np.where(np.abs(value) >= smallest, value, 0))
        errors = [v - s for v, s in zip(values, sent, strict=True)]
        return sum(sent), errors


class Int8:
    """Rounding to 8 bits by each replica, and again by the replica that adds a part."""

    def __init__(self, owners: np.ndarray):
        """Prepares the sums of one tensor.

        Args:
          owners: Replica that adds up each number, with the tensor's shape.
        """
        self._owners = owners

    def __call__(self, values: Sequence[np.ndarray]) -> Summed:
        sent = [rounded(value) for value in values]
        exact = sum(sent)
        total = rounded(exact)
        errors = [
            v - s + np.where(self._owners == replica, exact - total, 0)
            for replica, (v, s) in enumerate(zip(values, sent, strict=True))
        ]
        return total, errors


def rounded_once(values: Sequence[np.ndarray]) -> Summed:
    """Returns the sum of each worker's 8-bit integers, which is not rounded again."""
    sent = [rounded(value) for value in values]
    return sum(sent), [v - s for v, s in zip(values, sent, strict=True)]


class OneWay:
    """The sum by a server of the values that each worker compresses alone."""

    def __init__(self, methods: Sequence[Method]):
        """Keeps the method of each worker."""
        self._methods = methods

    def __call__(self, values: Sequence[np.ndarray]) -> Summed:
        each = [m([v]) for m, v in zip(self._methods, values, strict=True)]
        return sum(sent for sent, _ in each), [error for _, (error,) in each]


def rounded(value: np.ndarray) -> np.ndarray:
    """Rounds to 127 steps on either side of zero, one step size for 256 numbers."""
    found = []
    for start in range(0, value.size, 256):
        block = value.ravel()[start : start + 256]
        scale = np.float64(np.float32(np.abs(block).max() / 127))
        found.append(np.round(block / scale) * scale)
    return np.concatenate(found).reshape(value.shape)


def with_error_feedback(
    method: Method, gradients: Sequence[Sequence[np.ndarray]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the sum of each step, and each replica's error after the last.

    Args:
      method: Method for one tensor.
      gradients: Gradient of each replica, for each step.
    """
    errors = [np.zeros_like(gradient) for gradient in gradients[0]]
    sums = []
    for step in gradients:
        values = [g + e for g, e in zip(step, errors, strict=True)]
        summed, errors = method(values)
        sums.append(summed)
    return sums, errors
