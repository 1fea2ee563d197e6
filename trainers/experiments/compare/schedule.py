"""The order of the runs of a comparison."""

import dataclasses
from collections.abc import Iterable, Sequence

from trainers.config.config import Config
from trainers.experiments.arms import Arm

# Enough steps to load all files into the page cache, trace, train and evaluate once.
_MOST_WARM_UP_STEPS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One run of a comparison.

    Attributes:
      arm: Arm that the run belongs to.
      seed: Seed of the run; None for the warm-up, whose metrics are discarded.
    """

    arm: Arm
    seed: int | None

    @property
    def config(self) -> Config:
        """Configuration of the run, without its folder."""
        config = self.arm.config
        if self.seed is not None:
            return config.replace(seed=self.seed)
        steps = min(
            config.length.train_steps or _MOST_WARM_UP_STEPS, _MOST_WARM_UP_STEPS
        )
        return config.replace(train_steps=steps, epochs=None)


def schedule(arms: Sequence[Arm], seeds: Iterable[int]) -> list[Turn]:
    """Returns a warm-up of every arm, then for each seed a run of every arm.

    All arms of a seed run close together, because they are compared by seed: a machine
    that becomes slower affects all arms alike. In any consecutive seeds, as many as
    there are arms, each arm has each place once, so that none profits from being first
    more often. The order depends on the seed only; a comparison that is resumed keeps
    it.
    """
    turns = [Turn(arm, None) for arm in arms]
    for seed in seeds:
        first = seed % len(arms)
        turns += [Turn(arm, seed) for arm in (*arms[first:], *arms[:first])]
    return turns
