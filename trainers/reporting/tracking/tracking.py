"""Remote reports of a run: event file copies and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from trainers.config.tracking import TrackingConfig
from trainers.loop.parts import TrainingParts
from trainers.reporting.tracking.base import TrackedRun, git_commit
from trainers.reporting.tracking.event_copies import EventCopies, check_target
from trainers.reporting.tracking.queue import Trackers
from trainers.run_dir.run_dir import RunDir


class Tracking:
    """Copies of event files and experiment trackers; none by default."""

    def __init__(self, config: TrackingConfig, cluster: Cluster, console: Console):
        """Prepares the reports; starts no thread.

        Args:
          config: Settings of trackers and copies.
          cluster: This process's place in the cluster.
          console: Output of the process.

        Raises:
          UsageError: TensorFlow does not know the file system of the copies.
        """
        check_target(config.tensorboard_copy)
        self._config = config
        self._cluster = cluster
        self._console = console
        self._trackers = Trackers(config.trackers or (), console)
        self._copies: EventCopies | None = None

    def begin(
        self, assembly: TrainingParts, folder: RunDir, versions: Mapping[str, str]
    ) -> None:
        """Starts the reports, in threads that the run does not wait for.

        Args:
          assembly: Parts of the run.
          folder: Folder of the run.
          versions: Versions of Python, TensorFlow, Keras and NumPy, by name.
        """
        self._copies = EventCopies(
            folder.tensorboard,
            self._config.tensorboard_copy,
            self._console,
            # The evaluator copies its own event files, because it may still write after
            # this process has ended.
            skipped=(EVALUATOR,) if EVALUATOR in self._cluster.addresses else (),
        )
        self._copies.start()
        self._trackers.begin(lambda: _tracked_run(assembly, folder, versions))

    def log(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Queues the scalars of a step.

        Args:
          split: Folder of TensorBoard, such as `train`.
          values: Values by tag.
          step: Number of applied updates.
        """
        self._trackers.log(split, values, step)

    def end(self, result: Mapping[str, Any]) -> None:
        """Queues the result of the run.

        Args:
          result: Content of result.json.
        """
        self._trackers.end(result)

    def wait(self) -> None:
        """Waits until all reports are delivered, at most a minute for each kind."""
        if self._copies is not None:
            self._copies.stop()
        self._trackers.wait()


def _tracked_run(
    assembly: TrainingParts, folder: RunDir, versions: Mapping[str, str]
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
        # The run's folder and its parent, as in TensorBoard's HParams dashboard.
        name="/".join(folder.path.absolute().parts[-2:]),
        experiment=config.tracking.tracker_experiment,
        group=config.tracking.tracker_group,
        settings=config.replace(run_dir=str(folder.path)).to_dict(),
        tags=tags if commit is None else {**tags, "git_commit": commit},
        folder=folder.trackers,
    )
