"""A generated log of clicks with a known best loss.

The data resembles the input of a click-through model: a few columns of categories, a
few of which make up most of the log, and whether there was a click. Every category has
a hidden weight, and a click is drawn with probability sigmoid(sum of the weights). No
model can be expected to have a smaller loss than these probabilities.
"""

import math

import numpy as np

from trainers.config.data import DataConfig
from trainers.inputs.sources import ArraySource, Data

# Standard deviation of the sum of all columns' weights, if all categories were equally
# frequent: clicks are predictable, but far from certain.
_LOGIT_SCALE = 2.0


def load(config: DataConfig) -> Data:
    """Returns ids int64 [n, num_columns] and labels int64 [n], equal for every seed."""
    num_held_out = max(1, config.num_examples // 8)
    total = config.num_examples + num_held_out
    generator = np.random.default_rng(0)
    ids = np.empty((total, config.num_columns), np.int64)
    logits = np.zeros(total)
    for column in range(config.num_columns):
        ids[:, column] = _draw_ids(generator, total, config.num_categories)
        weights = generator.standard_normal(config.num_categories)
        logits += weights[ids[:, column]]
    # A sum of n standard normal weights has the standard deviation sqrt(n).
    logits *= _LOGIT_SCALE / math.sqrt(config.num_columns)
    labels = (generator.random(total) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    split = config.num_examples
    return Data(
        train=ArraySource(ids[:split], labels[:split]),
        evaluation=ArraySource(ids[split:], labels[split:]),
        input_shape=(config.num_columns,),
        num_classes=2,
        num_categories=config.num_categories,
        best_eval_loss=_cross_entropy(labels[split:], logits[split:]),
    )


def _draw_ids(
    generator: np.random.Generator, count: int, num_categories: int
) -> np.ndarray:
    """Draws ids [count] from 0 to num_categories - 1, smaller ones more often.

    Id k has probability log((k + 2) / (k + 1)) / log(num_categories + 1), very nearly
    Zipf's law, 1 / (k + 1): the integer part of a log-uniform number, less one.
    """
    uniform = generator.random(count)
    ids = np.exp(uniform * math.log(num_categories + 1)).astype(np.int64) - 1
    # Rounding can make the largest numbers one too large.
    return np.minimum(ids, num_categories - 1)


def _cross_entropy(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean of -log p(label), where p(1) = sigmoid(logit)."""
    # log(1 + exp(x)) without overflow.
    return float(np.logaddexp(0, np.where(labels == 1, -logits, logits)).mean())
