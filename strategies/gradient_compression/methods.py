"""The method of each value of --gradient_compression."""

from __future__ import annotations

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
