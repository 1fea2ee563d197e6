"""Order in which pipeline stages process micro-batches."""

from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """Work of one stage on one micro-batch, forward or backward."""

    stage: int
    micro_batch: int
    is_forward: bool


def order_of_stage(
    stage: int, num_stages: int, num_microbatches: int
) -> Iterator[Piece]:
    """Yields the pieces of one stage under the 1F1B schedule.

    Each stage first runs forward as many micro-batches as there are stages from it to
    the last one. After that it runs one backward pass before each further forward pass
    (Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters,
    2021, figure 4, "1F1B"). Its idle time equals the idle time of a schedule with all
    forward passes first (Huang et al., GPipe, 2019), but it never holds the activations
    of more micro-batches than there are stages.
    """
    # Warm-up: forward passes before the first backward pass can arrive.
    ahead = min(num_stages - 1 - stage, num_microbatches)
    for index in range(ahead):
        yield Piece(stage, index, is_forward=True)
    for index in range(num_microbatches):
        if ahead + index < num_microbatches:
            yield Piece(stage, ahead + index, is_forward=True)
        yield Piece(stage, index, is_forward=False)


def order_of_pieces(num_stages: int, num_microbatches: int) -> Iterator[Piece]:
    """Yields the pieces of all stages in an order that respects their dependencies.

    Forward depends on forward of the previous stage. Backward depends on backward of
    the next stage and on its own forward. Each stage keeps its own order.
    """
    waiting = [
        list(order_of_stage(stage, num_stages, num_microbatches))
        for stage in range(num_stages)
    ]
    done: set[Piece] = set()
    while any(waiting):
        for pieces in waiting:
            # A stage waits until the first piece of its order is ready.
            if pieces and _needed(pieces[0], num_stages) <= done:
                done.add(pieces[0])
                yield pieces.pop(0)


def _needed(piece: Piece, num_stages: int) -> set[Piece]:
    if piece.is_forward:
        return {piece._replace(stage=piece.stage - 1)} if piece.stage else set()
    needed = {piece._replace(is_forward=True)}
    if piece.stage < num_stages - 1:
        needed.add(piece._replace(stage=piece.stage + 1))
    return needed


def idle_share_of_equal_stages(num_stages: int, num_microbatches: int) -> float:
    """Returns the idle fraction of a step if all stages take equally long.

    It is (S - 1) / (M + S - 1) for S stages and M micro-batches: Huang et al., GPipe,
    2019, section 2.3.
    """
    return (num_stages - 1) / (num_microbatches + num_stages - 1)
