"""Where a model is cut into stages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

from strategies.settings import UsageError
from trainers.pipeline.graph import LayerGraph


def cut_at_layers(graph: LayerGraph, names: Sequence[str]) -> list[int]:
    """The first call of every stage but the first, which is one of the named layer.

    Raises:
      UsageError: a name is not that of a layer, or no stage can begin with it.
    """
    positions: dict[str, int] = {}
    for index, call in enumerate(graph.calls):
        positions.setdefault(call.layer.name, index)
    accepted = [graph.calls[index].layer.name for index in graph.cuts()]
    given = f"--stages={','.join(names)}"
    for name in names:
        if name not in accepted:
            has = "cannot begin a stage" if name in positions else "is not a layer"
            raise UsageError(
                f"{given}: {name!r} {has} of this model; those that can begin a stage "
                f"are {', '.join(accepted) or 'none'}."
            )
    cuts = [positions[name] for name in names]
    if any(first >= second for first, second in itertools.pairwise(cuts)):
        ordered = sorted(set(names), key=positions.__getitem__)
        raise UsageError(
            f"{given} is not in the order of the model: give "
            f"--stages={','.join(ordered)}."
        )
    return cuts


def cut_evenly(
    graph: LayerGraph, measure: Callable[[], Sequence[float]], num_stages: int
) -> list[int]:
    """The first call of every stage but the first, so that stages take equally long.

    Args:
      graph: of the model.
      measure: gives the seconds that each call takes.
      num_stages: how many stages there are to be.

    Returns:
      The cuts for which the slowest stage is fastest: a pipeline is as fast as that.

    Raises:
      UsageError: the model has too few places to cut.
    """
    accepted = graph.cuts()
    if num_stages - 1 > len(accepted):
        raise UsageError(
            f"--stages={num_stages} is more than the {len(accepted) + 1} parts that "
            "this model can be cut into between its layers: lower it."
        )
    if num_stages == 1:
        return []
    until = [0.0, *itertools.accumulate(measure())]

    @functools.cache
    def best(begin: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Seconds of the slowest stage from a call on, and where they are cut."""
        if stages == 1:
            return until[-1] - until[begin], ()
        possible = []
        for index, cut in enumerate(accepted):
            if cut > begin and len(accepted) - index >= stages - 1:
                slowest, cuts = best(cut, stages - 1)
                own = until[cut] - until[begin]
                possible.append((max(own, slowest), (cut, *cuts)))
        return min(possible)

    return list(best(0, num_stages)[1])
