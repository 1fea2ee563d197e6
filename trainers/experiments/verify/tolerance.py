"""How far apart two correct runs may be: rounding, and nothing else."""

from __future__ import annotations

import math

from trainers.config.config import Config

# Spacing of the numbers next to 1: 2^-23, 2^-52, 2^-7, 2^-10.
_EPSILON = {
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "mixed_bfloat16": 2.0**-7,
    "mixed_float16": 2.0**-10,
}

# Of a sum's rounding errors as a random walk: one sum in 1,500 goes further.
_WIDTHS = 4.0


def tolerance(config: Config, step: int) -> float:
    """The relative difference at which a step is still called equivalent.

    Strategies differ in the order in which they add up the examples of a global
    batch. Every addition rounds by at most u = epsilon / 2 of its result. For n terms
    the errors add up to at most n u of the sum of the magnitudes in the worst case
    (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), and to
    w sqrt(n) u, but for a probability of 2 exp(-w^2 / 2), if they are as often up as
    down (Higham and Mary, A new approach to probabilistic rounding error analysis,
    2019). Two orders of adding differ by at most twice that, w sqrt(n) epsilon. Every
    update takes such an error into the weights, which all later steps start from: up
    to step t with L examples each, n = L t terms have been added up.

    In mixed precision sums are in float32, and only their results are rounded to 16
    bits: L is 1.

    For 64 examples and 20 steps it is 1.7e-5 in float32 and 3.2e-14 in float64; two
    towers and one device were 7.7e-7 and 8.4e-16 apart there (convnet, Adam).

    Args:
      config: tells dtype and global batch.
      step: counted from one.
    """
    dtype = config.model.dtype
    length = 1 if dtype.startswith("mixed") else config.length.global_batch_size
    return _WIDTHS * math.sqrt(length * step) * _EPSILON[dtype]


def in_words(config: Config, step: int) -> str:
    """The same with how it comes about."""
    return (
        f"{tolerance(config, step):.1e} at step {step}: rounding of "
        f"{config.model.dtype} sums, {config.length.global_batch_size} examples a step"
    )
