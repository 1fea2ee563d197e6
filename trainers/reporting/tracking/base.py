"""Interface of experiment trackers."""

import dataclasses
import json
import math
import pathlib
import re
import subprocess
from collections.abc import Mapping
from typing import Any, Protocol

from strategies.common.files import write_json

# Accepted form of an id that is read from a file.
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECONDS_FOR_GIT = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """Description of a run for a tracker.

    Attributes:
      name: Name of the run, as in TensorBoard's HParams dashboard.
      experiment: Experiment or project of the run.
      group: Name that related runs share; None for no group.
      settings: Resolved configuration.
      tags: Short texts by name, such as the strategy.
      folder: Folder for the trackers' files in the run's folder.
    """

    name: str
    experiment: str
    group: str | None
    settings: Mapping[str, Any]
    tags: Mapping[str, str]
    folder: pathlib.Path

    def kept_id(self, tracker: str) -> str | None:
        """Returns a tracker's id of this run; None if the run is new to it."""
        try:
            kept = json.loads(self._path(tracker).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        found = kept.get("run_id") if isinstance(kept, dict) else None
        return found if isinstance(found, str) and _ID.fullmatch(found) else None

    def keep_id(self, tracker: str, run_id: str) -> None:
        """Stores the tracker's id, so that a resumed run continues the same entry."""
        self.folder.mkdir(exist_ok=True)
        write_json(self._path(tracker), {"run_id": run_id})

    def _path(self, tracker: str) -> pathlib.Path:
        return self.folder / f"{tracker}.json"


class Tracker(Protocol):
    """Entry of a run in a tracker. One thread makes all calls and may block.

    A failed call raises an exception of the tracker's package.
    """

    def begin(self, run: TrackedRun) -> str:
        """Creates the entry, or continues an earlier one, and returns its location."""

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Adds points.

        Args:
          values: Finite values by name.
          step: Number of applied updates.
          seconds: Time of the values, in seconds since 1970.
        """

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends the entry, which can be continued later.

        Args:
          status: Status of the run, as in result.json.
          figures: Numbers of result.json by path, such as final/eval_loss.
        """


def figures_of(result: Mapping[str, Any], path: str = "") -> dict[str, float]:
    """Returns all finite numbers of result.json, or of an object in it, by path."""
    found: dict[str, float] = {}
    for name, value in result.items():
        where = f"{path}{name}"
        if isinstance(value, Mapping):
            found |= figures_of(value, f"{where}/")
        # Not isinstance: True and False are instances of int.
        elif type(value) in (int, float) and math.isfinite(value):
            found[where] = float(value)
    return found


def code_version() -> str | None:
    """Returns the commit, followed by `+changes` if tracked files differ from it.

    None outside of a repository, and without git.
    """
    words = ("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes")
    try:
        done = subprocess.run(
            ["git", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_FOR_GIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return version if re.fullmatch(r"[0-9a-f]{40,64}(\+changes)?", version) else None
