"""The stages of a comparison: the seeds up to each look, and how it ends."""

import dataclasses
from collections.abc import Iterator, Sequence

from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.compare.analysis import control_of, runs_by_arm
from trainers.experiments.compare.comparison_dir import Range
from trainers.experiments.compare.controlled_settings import check_beginnings
from trainers.experiments.compare.execution import Execution
from trainers.experiments.compare.progress import Progress
from trainers.experiments.compare.schedule import schedule
from trainers.experiments.compare.sequential import Look, look_at
from trainers.experiments.compare.stopping import DroppedArm, arms_to_drop, state_at
from trainers.experiments.run_record import Run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRuns:
    """Runs of a comparison that has ended.

    Attributes:
      runs: Runs of all arms.
      look: Last look.
      stopping: Reason for the end of seeds, in words; empty if it was planned.
      dropped: Arms that were dropped.
    """

    runs: Sequence[Run]
    look: Look
    stopping: str = ""
    dropped: Sequence[DroppedArm] = ()


def run_stages(
    arms: Sequence[Arm],
    config: Config,
    looks: Sequence[Range],
    execution: Execution,
    progress: Progress,
) -> ComparedRuns:
    """Runs all seeds, or with `--until=verdict` as many as it takes.

    The decisions depend on the runs and the plan alone. A comparison that is continued
    decides the same again.

    Raises:
      StopRequested: A signal arrived; the current run has ended.
      UsageError: Arms began with different examples or weights.
    """
    settings = config.comparison
    runs: list[Run] = []
    dropped: list[DroppedArm] = []
    names: set[str] = set()
    stopping, num_done = "", 0
    for num_seeds in _ends_of_stages(config, looks):
        seeds = range(config.run.seed + num_done, config.run.seed + num_seeds)
        turns = [t for t in schedule(arms, seeds) if t.arm.name not in names]
        progress.expect(turns)
        for seed in seeds:
            of_seed = [turn for turn in turns if turn.seed in (None, seed)]
            runs += execution.run(of_seed, progress)
            # Only possible now: the runs report the digests of their beginnings.
            check_beginnings(runs, arms, settings.allow_different or ())
        num_done = num_seeds
        if not settings.stops_at_verdict:
            break
        look = look_at(num_seeds, looks)
        by_arm = runs_by_arm(arms, runs)
        control = control_of(arms, by_arm)
        if settings.drop_losers:
            dropped += arms_to_drop(num_seeds, by_arm, control, settings, look, names)
            names = {each.arm for each in dropped}
        state = state_at(num_seeds, by_arm, control, settings, look, names)
        progress.looked(state)
        stopping = _in_words(num_seeds, looks, state.is_decided)
        if state.is_decided:
            break
    return ComparedRuns(
        runs=runs, look=look_at(num_done, looks), stopping=stopping, dropped=dropped
    )


def _ends_of_stages(config: Config, looks: Sequence[Range]) -> Iterator[int]:
    """Yields the number of seeds at the end of each stage."""
    settings = config.comparison
    if not settings.stops_at_verdict:
        yield settings.seeds
        return
    for first, last in looks:
        yield from range(first, last + 1)


def _in_words(num_seeds: int, looks: Sequence[Range], is_decided: bool) -> str:
    which = "every arm" if is_decided else "not every arm"
    planned = f"{looks[0][0]} to {looks[-1][1]}"
    return f"{num_seeds} of {planned}: {which} has its verdicts"
