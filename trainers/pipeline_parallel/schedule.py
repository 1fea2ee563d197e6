"""In which order a pipeline's stages take up micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """One stage's work on one micro-batch, in one direction."""

    stage: int
    micro_batch: int
    is_forward: bool


def order_of_stage(
    stage: int, num_stages: int, num_micro_batches: int
) -> Iterator[Piece]:
    """What a stage does, one after another: one forward, one backward.

    Each stage takes up as many micro-batches as there are stages from it to the last;
    from then on it goes backward through one before it takes up the next (Narayanan et
    al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, figure 4,
    "1F1B"). It idles as long as with all forward first (Huang et al., GPipe, 2019), but
    never holds the activations of more micro-batches than there are stages.
    """
    ahead = min(num_stages - 1 - stage, num_micro_batches)
    for index in range(ahead):
        yield Piece(stage, index, is_forward=True)
    for index in range(num_micro_batches):
        if ahead + index < num_micro_batches:
            yield Piece(stage, ahead + index, is_forward=True)
        yield Piece(stage, index, is_forward=False)


def order_of_pieces(num_stages: int, num_micro_batches: int) -> Iterator[Piece]:
    """All pieces, each after those of its stage before it and those it depends on.

    Forward depends on forward of the stage before; backward on backward of the stage
    after, and on its own forward.
    """
    waiting = [
        list(order_of_stage(stage, num_stages, num_micro_batches))
        for stage in range(num_stages)
    ]
    done: set[Piece] = set()
    while any(waiting):
        for pieces in waiting:
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


def idle_share_of_equal_stages(num_stages: int, num_micro_batches: int) -> float:
    """The share of a step in which a stage has nothing to do, if all take equally long.

    (S - 1) / (M + S - 1) for S stages and M micro-batches: Huang et al., GPipe, 2019,
    section 2.3.
    """
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)
