"""Global batches of any source, by index or one after the other."""

from __future__ import annotations

from strategies.common.types import GlobalBatches
from trainers.inputs.augmentation import Augment
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source, StreamedSource


def batches_of(
    source: Source,
    order: Order,
    first_step: int,
    last_step: int,
    augment: Augment | None = None,
    repeats: bool = False,
) -> GlobalBatches:
    """Returns the batches of a range of steps of any source; see `SourceBatches`."""
    if isinstance(source, StreamedSource):
        return source.batches(order, first_step, last_step)
    return SourceBatches(
        source=source,
        order=order,
        first_step=first_step,
        last_step=last_step,
        augment=augment,
        repeats=repeats,
    )
