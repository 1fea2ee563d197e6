"""Device placement of operations and variables (`--log_device_placement`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.console import Console
from strategies.common.private_apis.graphs import graphs_collected
from strategies.common.text import table_lines
from strategies.common.types import LoopFunction, StepResults, SummaryLevel, SyncedFlags
from trainers.loop.parts import TrainingParts
from trainers.reporting.run_description import short_name, variable_placements
from trainers.reporting.tensorboard import Summaries, table

# Names of operations are long, and lines of a log need not fit a terminal.
_LOG_WIDTH = 1000
_OPERATION = ("device", "type", "operation")
_VARIABLE = ("devices", "type", "shape", "variable")


class Placed(NamedTuple):
    """Operation as a device runs it, after TensorFlow's optimizations."""

    device: str
    kind: str
    name: str


class PlacementRecorder:
    """Inner loop that reports the placement of the operations of its first call.

    Satisfies `LoopFunction`. TensorFlow places the operations of a function when it
    first runs. Before, operations only have their requested devices, and most have
    none.
    """

    def __init__(
        self, loop_function: LoopFunction, tell: Callable[[list[Placed]], None]
    ):
        self._run_steps = loop_function
        self._tell: Callable[[list[Placed]], None] | None = tell

    def trace(self, batches: Any) -> tf.Graph:
        return self._run_steps.trace(batches)

    def num_traces(self) -> int:
        return self._run_steps.num_traces()

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        if self._tell is None:
            return self._run_steps(batches, num_steps, observe, local_flags)
        with graphs_collected() as graphs:
            results = self._run_steps(batches, num_steps, observe, local_flags)
        self._tell(_placed(graphs))
        # Later calls run the same graphs.
        self._tell = None
        return results


def _placed(graphs: Sequence[Any]) -> list[Placed]:
    return sorted(
        Placed(short_name(node.device), node.op, node.name)
        for graph in graphs
        for node in graph.node
    )


def write_placements(
    placed: Sequence[Placed],
    parts: TrainingParts,
    console: Console,
    log: str,
    summaries: Summaries,
) -> None:
    """Writes operations and variables with their devices, and prints a summary.

    Both tables go to the log. The operations also go to TensorBoard, which already has
    the variables.
    """
    operations = [_OPERATION, *placed]
    # Columns in the order of the table of operations: device and type first.
    variables = [_VARIABLE, *(row[::-1] for row in variable_placements(parts))]
    tables: dict[str, Sequence[Sequence[str]]] = {
        "operations": operations,
        "variables": variables,
    }
    for what, rows in tables.items():
        lines = table_lines(rows, numbers=False, width=_LOG_WIDTH)
        console.note("\n".join([f"placement of {what}", *lines]))
    summaries.texts({"placement": table(_OPERATION, list(placed))})
    counts = Counter(operation.device for operation in placed)
    where = ", ".join(f"{device} {count:,}" for device, count in sorted(counts.items()))
    console.item(
        "placement",
        f"{len(placed):,} operations ({where}) and {len(variables) - 1:,} "
        f"variables, listed in {log}",
    )
