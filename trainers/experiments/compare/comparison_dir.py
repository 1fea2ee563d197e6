"""The folder of a comparison, which can be resumed."""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.files import (
    FolderLock,
    check_own,
    new_folder,
    read_small,
    unusable,
    write_atomically,
    write_json,
)
from strategies.common.strict_json import parse_json
from strategies.common.text import as_argument
from trainers.config.config import Config
from trainers.config.groups import option
from trainers.experiments.arms import Arm, settings_in_effect
from trainers.experiments.compare.schedule import Turn
from trainers.run_dir.checkpoint_names import check_writable_run

PLAN = "plan.json"
_WARM_UP = "warm_up"
# Folders of runs that are not compared.
NOT_COMPARED = (_WARM_UP, "tuning")

# Everything that is read, overwritten or deleted; run folders are checked when they are
# read.
_PARTS = (PLAN, "runs/*/*", f"{_WARM_UP}/*", "tuning/*/*/*", "logs/*")


# First and last number of seeds at which the arms of a comparison are compared.
Range = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """A comparison that has begun.

    Attributes:
      is_continued: True if it existed already.
      looks: Looks of its plan, then the looks at each range of added seeds.
    """

    is_continued: bool
    looks: Sequence[Range]


class ComparisonDir:
    """Paths and files of a comparison; the constructor writes nothing.

    plan.json describes the comparison. runs/<arm>/seed-<n> are ordinary run folders,
    each with a measured.json of measurements from outside the run. warm_up/ holds the
    runs that are discarded, tuning/ the runs of a search, and logs/ the output of each
    run.
    """

    def __init__(self, path: str | None):
        """Takes --run_dir, or chooses a name with the time."""
        self.path = pathlib.Path(path) if path else new_folder("compare")
        self.runs = self.path / "runs"
        self._plan = self.path / PLAN
        self._lock = FolderLock(self.path)

    def run_path(self, turn: Turn) -> pathlib.Path:
        if turn.seed is None:
            return self.path / _WARM_UP / turn.arm.name
        return self.runs / turn.arm.name / f"seed-{turn.seed}"

    def event_dir(self, config: Config) -> str | None:
        """Returns the folder of all event files; None if they are in the run folders.

        `config` is that of the comparison or of one of its runs.
        """
        target = config.tracking.tensorboard_dir
        if target is None:
            return None
        return f"{target.rstrip('/')}/{self.path.absolute().name}"

    def log_path(self, turn: Turn) -> pathlib.Path:
        name = "warm_up" if turn.seed is None else f"seed-{turn.seed}"
        return self.path / "logs" / f"{turn.arm.name}-{name}.log"

    def begin(
        self,
        arms: Sequence[Arm],
        first_seed: int,
        seeds: Range | None,
        tuning: str | None = None,
    ) -> Begun:
        """Creates the folder, or resumes the comparison that is in it.

        Args:
          arms: Arms in the order of the report.
          first_seed: Seed of the first run of each arm.
          seeds: First and last number of seeds at which the arms are compared; None
            for runs that exist.
          tuning: Search before the comparison, in the form of its flags; None without.

        Raises:
          UsageError: The folder holds something else, a link or another comparison,
            another process is using it, or it cannot be written.
        """
        plan: dict[str, Any] = {
            "schema_version": 1,
            "first_seed": first_seed,
            "arms": {arm.name: _settings(arm) for arm in arms},
            "looks": [] if seeds is None else [list(seeds)],
            "tuning": tuning,
        }
        try:
            check_writable_run(self.path)
            if self.path.is_dir():
                # Links are refused before anything in the folder is read.
                check_own(self.path, _PARTS)
            existing = self._read_plan()
            if existing is not None:
                self._check_continues(existing, plan)
                if seeds is not None:
                    plan["looks"] = self._extended(existing["looks"], seeds)
            elif self.path.exists() and any(
                # A comparison that is killed while it writes its plan leaves this.
                path.name != f".{PLAN}.writing"
                for path in self.path.iterdir()
            ):
                raise UsageError(
                    f"--run_dir={self.path} holds files that are not a comparison: "
                    "choose a new or empty folder."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            # The plan is written under the lock, so that only one process begins a
            # comparison.
            self._lock.acquire()
            if plan != existing:
                write_json(self._plan, plan)
            self._plan.with_name("logs").mkdir(exist_ok=True)
        except OSError as error:
            raise unusable(self.path, error) from error
        return Begun(existing is not None, [(a, b) for a, b in plan["looks"]])

    def remove_run(self, turn: Turn) -> None:
        """Removes an unfinished run, because a resumed run is timed wrongly."""
        path = self.run_path(turn)
        if path.exists():
            shutil.rmtree(path)

    def write(self, name: str, content: str) -> None:
        write_atomically(self.path / name, content)

    def _read_plan(self) -> Mapping[str, Any] | None:
        try:
            plan = parse_json(read_small(self._plan))
        except FileNotFoundError:
            return None
        except ValueError:
            plan = None
        if not _is_plan(plan):
            raise UsageError(
                f"--run_dir={self.path}: its plan.json is damaged; restore it from a "
                "copy, or choose another folder."
            )
        return plan

    def _extended(self, looks: list[list[int]], seeds: Range) -> list[list[int]]:
        """Returns the looks of a plan with those at the seeds that are added."""
        first, last = seeds
        planned = looks[-1][1] if looks else 0
        if last < planned:
            raise UsageError(
                f"--run_dir={self.path} holds a comparison of {planned} seeds, and "
                f"--seeds={last} is fewer: give at least --seeds={planned}, or another "
                "--run_dir."
            )
        added = [[max(first, planned + 1), last]] if last > planned else []
        return [*looks, *added]

    def _check_continues(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        differences = []
        if bool(was["looks"]) != bool(now["looks"]):
            has = "runs that it starts" if now["looks"] else "--runs"
            differences.append(has)
        if was["first_seed"] != now["first_seed"]:
            differences.append(f"--seed={now['first_seed']} (was {was['first_seed']})")
        if list(was["arms"]) != list(now["arms"]):
            names = ", ".join(was["arms"])
            differences.append(f"the arms {', '.join(now['arms'])} (were {names})")
        else:
            differences += [
                f"{option(name)}={as_argument(value)} of {arm} "
                f"(was {as_argument(was['arms'][arm].get(name))})"
                for arm, settings in now["arms"].items()
                for name, value in settings.items()
                if was["arms"][arm].get(name) != value
            ]
        if was.get("tuning") != now["tuning"]:
            tunings = [as_argument(plan.get("tuning")) for plan in (now, was)]
            differences.append("--tune={} (was {})".format(*tunings))
        if differences:
            raise UsageError(
                f"--run_dir={self.path} holds another comparison, without "
                f"{'; '.join(differences[:3])}: give the same flags to continue it, or "
                "another --run_dir."
            )


def _is_plan(content: Any) -> bool:
    """Returns whether a plan has all that is needed to resume a comparison."""
    match content:
        case {"first_seed": _, "arms": dict(arms), "looks": list(looks)}:
            return all(isinstance(s, dict) for s in arms.values()) and _are_looks(looks)
    return False


def _are_looks(looks: list[Any]) -> bool:
    """Returns whether ranges are pairs of numbers of seeds in ascending order."""
    planned = 0
    for pair in looks:
        if not isinstance(pair, list) or [type(end) for end in pair] != [int, int]:
            return False
        if not planned < pair[0] <= pair[1]:
            return False
        planned = pair[1]
    return True


def _settings(arm: Arm) -> dict[str, Any]:
    # The seed differs between the runs of an arm; the plan has the first one.
    return {k: v for k, v in settings_in_effect(arm.config).items() if k != "seed"}
