"""Progress of a comparison: a table on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence

from rich.table import Table

from strategies.common.console import Console
from strategies.common.text import counted
from trainers.experiments.compare.schedule import Turn
from trainers.experiments.compare.stopping import State
from trainers.experiments.run_record import Run

_MARKS = {"completed": "done", "diverged": "diverged", "failed": "failed"}


class Progress:
    """Progress of the runs of a comparison."""

    def __init__(self, console: Console, *, left: str = "left"):
        """Begins without runs; `left` follows the time of the runs to come."""
        self._left = left
        self._turns: list[Turn] = []
        self._console = console
        self._state: State | None = None
        self._marks: dict[Turn, str] = {}
        self._seconds: list[float] = []
        self._began: float | None = None

    def expect(self, turns: Sequence[Turn]) -> None:
        """Adds runs that will follow, each once."""
        self._turns += [turn for turn in turns if turn not in self._turns]

    def looked(self, state: State) -> None:
        """Prints the result of a look."""
        self._state = state
        for line in look_lines(state):
            self._console.narrate(line)

    def begun(self, turn: Turn) -> None:
        """Records that a run begins."""
        self._began = time.monotonic()
        self._marks[turn] = "running"

    def ended(self, turn: Turn, run: Run | None) -> None:
        """Records that a run has ended, now or before this comparison was resumed."""
        self._marks[turn] = _MARKS.get(run.status, run.status) if run else "done"
        # The run ended earlier; its time says nothing about the runs that are left.
        if self._began is None:
            return
        seconds = time.monotonic() - self._began
        self._began = None
        count = f"run {self._num_ended():>3}/{len(self._turns)} | {turn.arm.name}"
        # Warm-ups are shorter than runs, and would make the estimate too low.
        if run is None:
            self._console.narrate(f"{count}, warm-up | {seconds:.0f} s")
            return
        self._seconds.append(seconds)
        self._console.narrate(
            f"{count}, seed {turn.seed} | {_in_words(run)} | {seconds:.0f} s | "
            f"{self.time_left()}"
        )

    def time_left(self) -> str:
        """Returns an estimate from the mean time of the runs so far."""
        left = len(self._turns) - self._num_ended()
        if not self._seconds:
            return f"{counted(left, 'run')} {self._left}"
        seconds = left * sum(self._seconds) / len(self._seconds)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes}:{seconds:02} {self._left}"

    def _num_ended(self) -> int:
        return sum(mark != "running" for mark in self._marks.values())

    def table(self) -> Table:
        """Builds the table: a row per arm, with its seeds by the state of the run."""
        lines = [] if self._state is None else look_lines(self._state)
        caption = "\n".join([*lines, self.time_left()])
        table = Table(caption=caption, caption_justify="left", box=None)
        for heading in ("arm", "warm-up", "seeds"):
            table.add_column(heading)
        for arm in dict.fromkeys(turn.arm.name for turn in self._turns):
            marks = {t.seed: m for t, m in self._marks.items() if t.arm.name == arm}
            warm_up = marks.pop(None, "")
            seeds: dict[str, list[str]] = {}
            for seed, mark in marks.items():
                seeds.setdefault(mark, []).append(str(seed))
            words = (f"{mark} {' '.join(found)}" for mark, found in seeds.items())
            table.add_row(arm, warm_up, ", ".join(words))
        return table


def look_lines(state: State) -> list[str]:
    """Returns lines with the number of verdicts so far and the undecided metrics."""
    lines = [
        f"look after {state.num_seeds} seeds | {state.num_verdicts} of "
        f"{state.num_verdicts + sum(map(len, state.undecided.values()))} verdicts"
    ]
    if state.probable_num_seeds > state.num_seeds:
        lines[0] += f" | probably {state.probable_num_seeds} seeds"
    lines += [
        f"  undecided: {' and '.join(metrics)} of {arm}"
        for arm, metrics in state.undecided.items()
    ]
    return lines


def _in_words(run: Run) -> str:
    if not run.is_completed:
        return f"{run.status}: {run.reason}"
    figures = run.figures()
    speed, accuracy = figures["examples_per_second"], figures["eval_accuracy"]
    words = [] if speed is None else [f"{speed:,.0f} examples/s"]
    words += [] if accuracy is None else [f"accuracy {accuracy:.4f}"]
    return " | ".join(words) or "done"
