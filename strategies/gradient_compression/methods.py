"""The method of each value of --gradient_compression."""

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import Update
from strategies.gradient_compression.choice import Compression
from strategies.gradient_compression.int8 import Int8
from strategies.gradient_compression.method import Method
from strategies.gradient_compression.powersgd import PowerSgd
from strategies.gradient_compression.top_k import TopK


def method_for(
    compression: Compression, update: Update
) -> tuple[Method, dict[int, tf.TensorSpec]]:
    """Returns the method of a setting, and the gradients that it compresses.

    All other gradients are sent as they are: sparse ones, and ones that
    `Method.compresses` leaves out.

    Returns:
      The method, and shape and type of each compressed gradient by its index.

    Raises:
      UsageError: The method compresses no gradient of this model.
    """
    method: Method
    if compression.method == "powersgd":
        method = PowerSgd(compression.rank)
    elif compression.method == "topk":
        method = TopK(compression.fraction)
    else:
        method = Int8()
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
    return method, compressed
