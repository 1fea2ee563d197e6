"""How often tasks that are lost may be started again."""

from __future__ import annotations


class Restarts:
    """A budget that progress renews.

    A run that gets on between two faults goes on for as long as faults come; one that
    always fails at the same place ends after a few tries.
    """

    def __init__(self, most: int):
        """Begins with a full budget.

        Args:
          most: restarts without progress in between; 0 for none at all.
        """
        self.most = most
        self.total = 0
        self._used: dict[str, tuple[int, int]] = {}

    def take(self, what: str, step: int) -> int | None:
        """Takes one restart out of the budget.

        Args:
          what: is started again; each has a budget of its own.
          step: how far the run has come.

        Returns:
          The number of this restart since the last progress, counted from one; None if
          there is none left.
        """
        used, last_step = self._used.get(what, (0, step))
        if step > last_step:
            used = 0
        if used >= self.most:
            return None
        self._used[what] = used + 1, step
        self.total += 1
        return used + 1
