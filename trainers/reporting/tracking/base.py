"""What an experiment tracker is told of a run, and what it can do with it."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strategies.common.files import write_json

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECONDS_FOR_GIT = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """A run as a tracker sees it.

    Attributes:
      name: of the run, as TensorBoard's HParams dashboard has it.
      experiment: that it belongs to.
      group: of runs that belong together; None for none.
      settings: the resolved configuration.
      tags: short words by name, such as the strategy.
      folder: for what trackers keep in the run's folder.
    """

    name: str
    experiment: str
    group: str | None
    settings: Mapping[str, Any]
    tags: Mapping[str, str]
    folder: pathlib.Path

    def kept_id(self, tracker: str) -> str | None:
        """By which the tracker knows this run, if it has been told of it before."""
        try:
            kept = json.loads(self._path(tracker).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        found = kept.get("run_id") if isinstance(kept, dict) else None
        return found if isinstance(found, str) and _ID.fullmatch(found) else None

    def keep_id(self, tracker: str, run_id: str) -> None:
        """So that the run, continued, goes on there as the same."""
        self.folder.mkdir(exist_ok=True)
        write_json(self._path(tracker), {"run_id": run_id})

    def _path(self, tracker: str) -> pathlib.Path:
        return self.folder / f"{tracker}.json"


class Tracker(Protocol):
    """A tracker's own run. All of it is called from one thread, which may wait.

    What cannot be done raises whatever its package raises.
    """

    def begin(self, run: TrackedRun) -> str:
        """Makes the run, or takes up the one it was, and returns where to look."""

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Adds points.

        Args:
          values: finite, by name.
          step: applied updates.
          seconds: when, since 1970.
        """

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends the run, which may be continued.

        Args:
          status: as in result.json.
          figures: of result.json by path, such as final/eval_loss.
        """


MakeTracker = Callable[[], Tracker]


def figures_of(result: Mapping[str, Any], path: str = "") -> dict[str, float]:
    """Every finite number of result.json by its path."""
    found: dict[str, float] = {}
    for name, value in result.items():
        where = f"{path}{name}"
        if isinstance(value, Mapping):
            found |= figures_of(value, f"{where}/")
        elif type(value) in (int, float) and math.isfinite(value):
            found[where] = float(value)
    return found


def git_commit() -> str | None:
    """Of the folder that the program was started in; None if it is in no repository."""
    commit = _git("rev-parse", "HEAD")
    return commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else None


def code_version() -> str | None:
    """Returns the commit, followed by `+changes` if tracked files differ from it.

    None outside of a repository, and without git.
    """
    words = ("describe", "--always", "--exclude=*", "--abbrev=40")
    version = _git(*words, "--dirty=+changes")
    return version if re.fullmatch(r"[0-9a-f]{40,64}(\+changes)?", version) else None


def _git(*arguments: str) -> str:
    """Returns what git prints; nothing if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_FOR_GIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
