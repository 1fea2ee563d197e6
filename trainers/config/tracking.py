"""Settings of trackers and of the place of event files."""

import dataclasses
import importlib.util
from typing import ClassVar

from strategies.common.errors import UsageError
from strategies.common.fields import UsedBy, check_settings, setting
from strategies.common.text import as_argument

# Tracker (also the name of its package) -> command that installs the tracker's extra of
# pyproject.toml. The full MLflow package would add a server and 60 other packages.
EXTRAS = {
    "mlflow": "pip install mlflow-skinny 'sqlalchemy<2.1' alembic",
    "wandb": "pip install wandb",
}
# MLflow calls this an experiment, W&B a project.
_DEFAULT_EXPERIMENT = "distribution-strategies"
# Other modes start runs only as evidence, or write nothing.
_OF_RUNS: UsedBy = {"mode": ("train", "compare", "doctor")}
_OF_TRACKERS: UsedBy = {"trackers": tuple(EXTRAS)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Event files and trackers: reports outside the run folder."""

    group: ClassVar[str] = "tracking"

    tensorboard_dir: str | None = setting(
        None,
        "Folder or URL, such as gs://bucket/runs, in which TensorBoard's event files "
        "have a folder with the name of the run. Default: tb in the run folder.",
        path="folder",
        used_by=_OF_RUNS,
    )
    trackers: tuple[str, ...] | None = setting(
        None,
        "Also report settings, metrics and result to MLflow or Weights & Biases. "
        "Their own environment variables set the destination and the account, such as "
        "MLFLOW_TRACKING_URI and WANDB_MODE.",
        choices=tuple(EXTRAS),
        used_by=_OF_RUNS,
    )
    tracker_experiment: str = setting(
        _DEFAULT_EXPERIMENT,
        "MLflow's experiment, or the project of Weights & Biases.",
        used_by=_OF_TRACKERS,
        has_flag=False,
    )
    tracker_group: str | None = setting(
        None,
        "Name of a group of runs, for a tag and for W&B's group. Default: none; for "
        "the runs of a comparison, the name of its folder.",
        used_by=_OF_TRACKERS,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        twice = [t for t in self.trackers or () if (self.trackers or ()).count(t) > 1]
        if twice:
            raise UsageError(
                f"--trackers={as_argument(self.trackers)} has {twice[0]!r} twice: "
                "leave one of them out."
            )
        if not self.tracker_experiment.strip():
            raise UsageError(
                "--set=tracking.tracker_experiment= is empty: give a name, or leave "
                "it out."
            )

    def check_packages(self) -> None:
        """Checks that the packages of the trackers are installed.

        Raises:
          UsageError: A package is missing.
        """
        for name in self.trackers or ():
            # Any folder of this name on the import path, such as W&B's own `wandb/`, is
            # found as a namespace package, which has no origin.
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                raise UsageError(
                    f"--trackers={name} needs a package that is not installed: "
                    f"install the extra {name} ({EXTRAS[name]}), or leave it out."
                )
