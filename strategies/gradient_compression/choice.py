"""Values of --gradient_compression.

This module does not import TensorFlow.
"""

import dataclasses
import re

from strategies.common.errors import UsageError
from strategies.common.text import shown

NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class Compression:
    """Chosen way to compress gradients.

    Attributes:
      setting: Value of --gradient_compression.
      method: Name of the method.
      rank: Rank of the matrices of powersgd; zero for other methods.
      fraction: Part of the entries that topk sends; zero for other methods.
      exchange: Exchange of the compressed values, as in `Traits.exchange`.
    """

    setting: str
    method: str
    rank: int = 0
    fraction: float = 0.0
    exchange: str = "ring"


def parse_compression(text: str) -> Compression | None:
    """Parses a value of --gradient_compression; None stands for no compression."""
    if text == NONE:
        return None
    if text == "int8":
        return Compression(text, "int8")
    method, _, parameter = text.partition(":")
    # Python would also read digits of other scripts, and `1_0` as ten.
    if method == "powersgd" and re.fullmatch("0*[1-9][0-9]{0,8}", parameter):
        return Compression(text, method, rank=int(parameter))
    is_number = re.fullmatch(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-?[0-9]{1,3})?", parameter)
    if method == "topk" and is_number and 0 < float(parameter) <= 1:
        fraction = float(parameter)
        return Compression(text, method, fraction=fraction, exchange="all_gather")
    raise UsageError(
        f"--gradient_compression={shown(text)} is not known: give powersgd:RANK, such "
        "as powersgd:4, with a whole number of 1 or more; int8; topk:FRACTION, such as "
        f"topk:0.01, with a number above 0 and at most 1; or {NONE}."
    )
