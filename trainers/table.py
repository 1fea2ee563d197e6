"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 80


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in 80 columns: the first cell left, the others right; it alone is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    name_width = min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    return [
        "  ".join(
            [
                f"{row[0][:name_width]:<{name_width}}",
                *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
