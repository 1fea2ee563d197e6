"""Output of `--mode=doctor`: properties of a run, and findings with their remedies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError

Kind = Literal["problem", "warning", "slow"]


class Findings:
    """Findings on a run: problems prevent its start, and `slow` ones cost time."""

    def __init__(self, console: Console):
        self._console = console
        # In the order in which they are printed.
        self._texts: dict[Kind, list[str]] = {"problem": [], "warning": [], "slow": []}

    def show(self, label: str, text: str) -> None:
        """Prints a property of the run."""
        self._console.item(label, text)

    def add(self, kind: Kind, *texts: str) -> None:
        """Adds findings, each once: several checks may report the same one."""
        self._texts[kind] += [t for t in texts if t not in self._texts[kind]]

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Turns a `UsageError` within the context into a problem and continues."""
        try:
            yield
        except UsageError as error:
            self.add("problem", str(error))

    def conclude(self) -> ExitCode:
        """Prints the findings and whether the run could start.

        Returns:
          DONE if the run could start, USAGE if not.
        """
        for kind, texts in self._texts.items():
            for text in texts:
                self._console.say(f"{kind}: {text}")
        count = len(self._texts["problem"])
        if count:
            plural = "s" if count > 1 else ""
            self._console.say(f"not ready: {count} problem{plural}")
            return ExitCode.USAGE
        self._console.say("ready: this run would start")
        return ExitCode.DONE
