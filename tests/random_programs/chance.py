"""Random choices, and the lines of a program that they make."""

import random
from collections.abc import Mapping, Sequence
from typing import Any


class Chance:
    """Chooses by a seed, and collects the lines of a program.

    Attributes:
      lines: Lines so far.
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self.lines: list[str] = []
        self._num_names = 0

    def pick(self, *options: Any) -> Any:
        """Returns one of the options, each as likely as the others."""
        return self._random.choice(options)

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def weighted(self, weights: Mapping[str, float]) -> str:
        """Returns one of the keys, by their weights."""
        return self._random.choices([*weights], [*weights.values()])[0]

    def some(self, options: Sequence[str], most: int) -> list[str]:
        """Returns one to `most` different options."""
        different = list(dict.fromkeys(options))
        count = min(self._random.randint(1, most), len(different))
        return self._random.sample(different, count)

    def new(self, expression: str) -> str:
        """Adds a line that gives an expression a name; returns the name."""
        self._num_names += 1
        name = f"x{self._num_names}"
        self.lines.append(f"{name} = {expression}")
        return name

    def add(self, *lines: str) -> None:
        self.lines += lines
