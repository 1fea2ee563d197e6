"""The tolerance of a verification: differences that rounding alone explains."""

from __future__ import annotations

import math

from trainers.config.config import Config

# Spacing of the numbers next to 1: 2^-23, 2^-52, 2^-7, 2^-10.
EPSILON = {
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "mixed_bfloat16": 2.0**-7,
    "mixed_float16": 2.0**-10,
}

# The number w below: rounding exceeds the tolerance in one sum in 1,500, because 2
# exp(-4^2 / 2) = 1 / 1,490.
_WIDTHS = 4.0


def tolerance(config: Config, step: int) -> float:
    """Returns the largest relative difference of a step that is called equivalent.

    Strategies differ in the order in which they add up the examples of a global batch.
    Every addition rounds by at most u = epsilon / 2 of its result. For n terms the
    errors add up to at most n u of the sum of the magnitudes in the worst case (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). If errors are as
    often up as down, they add up to at most w sqrt(n) u, except with probability 2
    exp(-w^2 / 2) (Higham and Mary, A new approach to probabilistic rounding error
    analysis, 2019). Two orders of adding differ by at most twice that, w sqrt(n)
    epsilon. Every update adds such an error to the weights, which all later steps start
    from. Up to step t with L examples each, n = L t terms have been added up.

    In mixed precision sums are in float32, and only their results are rounded to 16
    bits: L is 1.

    For 64 examples and 20 steps the tolerance is 1.7e-5 in float32 and 3.2e-14 in
    float64; two towers and one device differed by 7.7e-7 and 8.4e-16 there (convnet,
    Adam).

    Args:
      config: Configuration with dtype and global batch.
      step: Step, counted from one.
    """
    dtype = config.model.dtype
    length = 1 if dtype.startswith("mixed") else config.length.global_batch_size
    return _WIDTHS * math.sqrt(length * step) * EPSILON[dtype]


def in_words(config: Config, step: int) -> str:
    """Returns the tolerance of a step with its explanation."""
    return (
        f"{tolerance(config, step):.1e} at step {step}: rounding of "
        f"{config.model.dtype} sums, {config.length.global_batch_size} examples a step"
    )
