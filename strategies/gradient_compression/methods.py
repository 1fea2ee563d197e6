"""The method of each value of --gradient_compression."""

from __future__ import annotations

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import Update
from strategies.gradient_compression.choice import Compression
from strategies.gradient_compression.int8 import Int8
from strategies.gradient_compression.method import Method
from strategies.gradient_compression.powersgd import PowerSgd
from strategies.gradient_compression.top_k import TopK


def method_of(compression: Compression) -> Method:
    """Returns the method that a setting asks for."""
    if compression.method == "powersgd":
        return PowerSgd(compression.rank)
    if compression.method == "topk":
        return TopK(compression.fraction)
    return Int8()


def compressed_gradients(
    compression: Compression, method: Method, update: Update
) -> dict[int, tf.TensorSpec]:
    """Returns shape and type of the gradients that are compressed, by their index.

    All others are sent as they are: sparse gradients, and gradients that the method
    does not make smaller.

    Args:
      compression: Setting of the method, for a message.
      method: Way to compress gradients.
      update: Update that applies the gradients.

    Raises:
      UsageError: The method makes no gradient of this model smaller.
    """
    specs = {
        index: spec
        for index, spec in enumerate(update.dense_gradients())
        if spec is not None
    }
    compressed = {i: spec for i, spec in specs.items() if method.compresses(spec)}
    if not compressed:
        raise UsageError(
            f"--gradient_compression={compression.setting} compresses no gradient "
            f"of this model: {method.remedy([*specs.values()])}."
        )
    return compressed
