"""Drawings of reports, as SVG with real text."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

# Okabe and Ito's palette, which color-blind readers can distinguish too.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    "#000000",
)
# Color in which matplotlib draws axes; `drawn` replaces it by the color of the page's
# text, which text in SVG has anyway.
_INK = "#000000"
_WIDTH_INCHES = 9.0
# Largest ratio of the ends of a linear axis; a logarithmic one is used beyond it.
_MOST_ON_A_LINEAR_AXIS = 4


def drawn(draw: Callable[..., None], *content: Any, height: float) -> str:
    """Draws a figure and returns its SVG, identical for identical content.

    It is empty if nothing is drawn.
    """
    settings: dict[Any, Any] = {
        # Text stays text, which can be searched.
        "svg.fonttype": "none",
        # Without it, Matplotlib derives ids of elements from random numbers.
        "svg.hashsalt": "comparison",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(settings):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        draw(figure, *content)
        if not figure.axes:
            return ""
        text = io.StringIO()
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None},
        )
    # Without the declaration of a file of its own, it can stand in a page; its ink is
    # that of the page, dark or light.
    drawing = "<svg" + text.getvalue().partition("<svg")[2]
    return drawing.replace(_INK, "currentColor")


def plain(name: str) -> str:
    """Returns a name for a drawing, with escaped dollar signs.

    matplotlib takes text between two of them for a formula. Formulas stay on, because
    numbers on logarithmic axes are formulas.
    """
    return name.replace("$", r"\$")


def draw_ratios(axes: Axes, shown: Sequence[Mapping[str, Any]]) -> None:
    """Draws ratios to the control with their intervals, a row for each arm."""
    for row, comparison in enumerate(shown):
        (low, high), middle = comparison["interval"], comparison["estimate"]
        axes.plot([low, high], [row, row], color=COLORS[0], linewidth=2)
        axes.plot([middle], [row], "o", color=COLORS[0])
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_yticks(range(len(shown)), [plain(c["arm"]) for c in shown])
    # The first arm is at the top.
    axes.set_ylim(len(shown) - 0.5, -0.5)
    ends = [1.0, *(end for c in shown for end in c["interval"])]
    if max(ends) > _MOST_ON_A_LINEAR_AXIS * min(ends):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}x")
