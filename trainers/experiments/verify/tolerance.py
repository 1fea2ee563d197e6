"""The tolerance of a verification: differences that rounding alone explains."""

import math
from collections.abc import Sequence

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


def tolerance(dtype: str, examples: Sequence[int]) -> float:
    """Returns the largest relative difference of a step that is called equivalent.

    Strategies differ in the order in which they add up the examples of a global batch.
    Every addition rounds by at most u = epsilon / 2 of its result. For n terms the
    errors add up to at most n u of the sum of the magnitudes in the worst case (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). If errors are as
    often up as down, they add up to at most w sqrt(n) u, except with probability 2
    exp(-w^2 / 2) (Higham and Mary, A new approach to probabilistic rounding error
    analysis, 2019). Two orders of adding differ by at most twice that, w sqrt(n)
    epsilon. Every update adds such an error to the weights, which all later steps start
    from: n is the number of examples of all steps so far.

    In mixed precision sums are in float32, and only their results are rounded to 16
    bits: n is the number of steps.

    For 64 examples and 20 steps the tolerance is 1.7e-5 in float32 and 3.2e-14 in
    float64; two towers and one device differed by less than 1e-6 and 1e-15 there
    (convnet, Adam).

    Args:
      dtype: Value of --dtype.
      examples: Number of examples of each step up to the one in question.
    """
    num_terms = len(examples) if dtype.startswith("mixed") else sum(examples)
    return _WIDTHS * math.sqrt(num_terms) * EPSILON[dtype]


def in_words(dtype: str, examples: Sequence[int]) -> str:
    """Returns the tolerance of the last of some steps with its explanation."""
    # The last batch of an epoch, or a later `fit`, may have another size.
    sizes = sorted(set(examples))
    size = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
    return (
        f"{tolerance(dtype, examples):.1e} at step {len(examples)}: rounding of "
        f"{dtype} sums, {size} examples a step"
    )
