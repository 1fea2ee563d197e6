"""The order of a pipeline's work, played through with pieces of a known length."""

from collections import Counter

import pytest

from trainers.pipeline_parallel.schedule import (
    Piece,
    idle_share_of_equal_stages,
    order_of_pieces,
)

SHAPES = [(s, m) for s in (1, 2, 3, 5) for m in (1, 2, 4, 7)]


def ends_of(num_stages: int, num_microbatches: int) -> dict[Piece, int]:
    """Returns the end of each piece if forward takes 1 and backward 2 units of time."""
    ends: dict[Piece, int] = {}
    free = Counter[int]()
    for piece in order_of_pieces(num_stages, num_microbatches):
        if piece.is_forward:
            needed = [piece._replace(stage=piece.stage - 1)]
        else:
            needed = [
                piece._replace(is_forward=True),
                piece._replace(stage=piece.stage + 1),
            ]
        # A piece that comes before what it needs would not be in `ends`.
        begin = max(
            free[piece.stage],
            *(ends[n] for n in needed if 0 <= n.stage < num_stages),
            0,
        )
        ends[piece] = free[piece.stage] = begin + (1 if piece.is_forward else 2)
    return ends


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_every_piece_once_and_idle_as_long_as_theory_says(
    num_stages: int, num_microbatches: int
) -> None:
    ends = ends_of(num_stages, num_microbatches)
    assert len(ends) == 2 * num_stages * num_microbatches
    idle = 1 - 3 * num_microbatches / max(ends.values())
    expected = idle_share_of_equal_stages(num_stages, num_microbatches)
    assert idle == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_no_stage_holds_more_micro_batches_than_there_are_stages(
    num_stages: int, num_microbatches: int
) -> None:
    held = Counter[int]()
    for piece in order_of_pieces(num_stages, num_microbatches):
        held[piece.stage] += 1 if piece.is_forward else -1
        assert held[piece.stage] <= min(num_stages - piece.stage, num_microbatches)
    assert not any(held.values())


def test_values_of_the_formula() -> None:
    """Two stages and four micro-batches: one of five."""
    assert idle_share_of_equal_stages(2, 4) == 1 / 5
    assert idle_share_of_equal_stages(4, 4) == 3 / 7
    assert idle_share_of_equal_stages(1, 9) == 0
