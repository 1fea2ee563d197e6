"""Output of `--mode=doctor`: properties of a run, and findings with their remedies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Literal

from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError


@dataclasses.dataclass(slots=True)
class Findings:
    """Findings on a run.

    Attributes:
      console: Output of the process.
      problems: Reasons why the run would not start.
      warnings: Texts on what may go wrong.
      slow: Texts on what makes the run slower than it could be.
    """

    console: Console
    problems: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    slow: list[str] = dataclasses.field(default_factory=list)

    def show(self, label: str, text: str) -> None:
        """Prints a property of the run."""
        self.console.item(label, text)

    def add_problem(self, text: str) -> None:
        """Adds a problem once: several checks may report the same one."""
        if text not in self.problems:
            self.problems.append(text)

    def add(self, kind: Literal["problem", "warning"], text: str) -> None:
        """Adds a problem or a warning."""
        if kind == "problem":
            self.add_problem(text)
        else:
            self.warnings.append(text)

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Turns a `UsageError` within the context into a problem and continues."""
        try:
            yield
        except UsageError as error:
            self.add_problem(str(error))

    def conclude(self) -> ExitCode:
        """Prints the findings and whether the run could start.

        Returns:
          DONE if the run could start, USAGE if not.
        """
        kinds = {"problem": self.problems, "warning": self.warnings, "slow": self.slow}
        for kind, texts in kinds.items():
            for text in texts:
                self.console.say(f"{kind}: {text}")
        count = len(self.problems)
        if count:
            plural = "s" if count > 1 else ""
            self.console.say(f"not ready: {count} problem{plural}")
            return ExitCode.USAGE
        self.console.say("ready: this run would start")
        return ExitCode.DONE
