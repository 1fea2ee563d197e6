"""Everything that a run reports to besides its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from trainers.config.tracking import TrackingConfig
from trainers.loop.builder import Assembly
from trainers.reporting.tracking.base import TrackedRun, git_commit
from trainers.reporting.tracking.event_copies import EventCopies, check_target
from trainers.reporting.tracking.queue import Trackers
from trainers.run_dir.run_dir import RunFolder


class Outside:
    """Copies of event files and experiment trackers; none unless asked for."""

    def __init__(self, config: TrackingConfig, cluster: Cluster, console: Console):
        """Starts nothing yet.

        Raises:
          UsageError: event files are to be copied to what nobody knows.
        """
        check_target(config.tensorboard_copy)
        self._config = config
        self._cluster = cluster
        self._console = console
        self._trackers = Trackers(config.trackers or (), console)
        self._copies: EventCopies | None = None

    def begin(
        self, assembly: Assembly, folder: RunFolder, versions: Mapping[str, str]
    ) -> None:
        """Starts to report, in threads that the run does not wait for.

        Args:
          assembly: The parts of the run.
          folder: The folder of the run.
          versions: Versions of Python, TensorFlow, Keras and NumPy, by name.
        """
        self._copies = EventCopies(
            folder.tensorboard,
            self._config.tensorboard_copy,
            self._console,
            # It copies its own, also what it writes when this process has ended.
            skipped=(EVALUATOR,) if EVALUATOR in self._cluster.addresses else (),
        )
        self._copies.start()
        self._trackers.begin(lambda: _tracked_run(assembly, folder, versions))

    def log(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Tells of what was measured at a step."""
        self._trackers.log(split, values, step)

    def end(self, result: Mapping[str, Any]) -> None:
        """Tells of a run's result."""
        self._trackers.end(result)

    def wait(self) -> None:
        """Until all of it is where it should be, or a minute each has passed."""
        if self._copies is not None:
            self._copies.stop()
        self._trackers.wait()


def _tracked_run(
    assembly: Assembly, folder: RunFolder, versions: Mapping[str, str]
) -> TrackedRun:
    config = assembly.config
    tags = {
        "strategy": assembly.strategy.name,
        "model": config.model.model,
        "dataset": config.data.dataset,
        "num_replicas": str(assembly.strategy.num_replicas),
        **versions,
    }
    commit = git_commit()
    return TrackedRun(
        name="/".join(folder.path.absolute().parts[-2:]),
        experiment=config.tracking.tracker_experiment,
        group=config.tracking.tracker_group,
        settings=config.replace(run_dir=str(folder.path)).to_dict(),
        tags=tags if commit is None else {**tags, "git_commit": commit},
        folder=folder.trackers,
    )
