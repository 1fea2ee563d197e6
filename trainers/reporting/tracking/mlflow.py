"""MLflow tracker.

It uses only the client, and no global state of MLflow:
https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainers.reporting.tracking.base import TrackedRun

# Limits of a server: characters per value and per name.
_MOST_CHARACTERS = 6000
_MOST_CHARACTERS_OF_A_NAME = 250
# Characters that names of metrics cannot have (mlflow/utils/validation.py).
_REFUSED = re.compile(r"[^\w\-. :]")
_STATUS = {"completed": "FINISHED", "preempted": "KILLED"}


class MLflow:
    """Entry of a run in MLflow. Satisfies `Tracker`.

    Requests are synchronous. MLflow's own asynchronous logging keeps errors to itself
    and blocks the end of the process for as long as a server does not answer.
    """

    def __init__(self) -> None:
        # Hides log lines about new databases, and tracebacks of errors that are also
        # raised.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # The default of 7 retries would block for two minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._client = MlflowClient()
        self._run_id = ""

    def begin(self, run: TrackedRun) -> str:
        """Creates or continues the entry; see `Tracker`."""
        tags = {**run.tags, **({"group": run.group} if run.group else {})}
        if "git_commit" in tags:
            # MLflow's pages show the commit under this tag.
            tags["mlflow.source.git.commit"] = tags["git_commit"]
        entry = self._existing(run.kept_id("mlflow"))
        if entry is None:
            experiment = self._experiment_id(run.experiment)
            entry = self._client.create_run(experiment, run_name=run.name, tags=tags)
            run.keep_id("mlflow", entry.info.run_id)
        else:
            self._client.update_run(entry.info.run_id, status="RUNNING")
        self._run_id, known = entry.info.run_id, entry.data.params
        settings = {n: str(v)[:_MOST_CHARACTERS] for n, v in run.settings.items()}
        # Parameters cannot be changed; changed settings of a resumed run become tags.
        for name, text in settings.items():
            if known.get(name, text) != text:
                tags[f"continued_with.{name}"] = text
        params = [Param(n, text) for n, text in settings.items() if n not in known]
        # The client makes several requests if there are too many for one.
        self._client.log_batch(
            self._run_id, params=params, tags=[RunTag(*tag) for tag in tags.items()]
        )
        return f"run {self._run_id} in {self._client.tracking_uri}"

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Adds points; see `Tracker`."""
        # MLflow's timestamps are in milliseconds.
        when = round(1e3 * seconds)
        points = [
            Metric(_accepted(name), value, when, step) for name, value in values.items()
        ]
        self._client.log_batch(self._run_id, metrics=points)

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends the entry; see `Tracker`."""
        last_step = int(figures.get("steps", 0))
        results = {f"result/{name}": value for name, value in figures.items()}
        try:
            self.log(results, last_step, time.time())
        finally:
            # Otherwise a server that refuses a figure shows a run that never ends.
            self._client.set_tag(self._run_id, "status", status)
            self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))

    def _experiment_id(self, name: str) -> str:
        """Returns the id of an experiment, which is created if it does not exist."""
        if self._client.get_experiment_by_name(name) is None:
            # Another run may create it at the same time.
            with contextlib.suppress(MlflowException):
                return self._client.create_experiment(name)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            raise RuntimeError(f"experiment {name!r} cannot be created")
        return found.experiment_id

    def _existing(self, run_id: str | None) -> Any:
        """Returns the run with an id, or None if this server has no such run."""
        try:
            return None if run_id is None else self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


def _accepted(name: str) -> str:
    """Returns a name that MLflow accepts; any other fails a request of all metrics.

    Names such as `train/acc (%)` may have any characters.
    """
    parts = [_REFUSED.sub("_", part) for part in name.split("/")]
    # MLflow makes paths of names, in which these have a meaning.
    parts = ["_" if part in ("", ".", "..") else part for part in parts]
    return "/".join(parts)[:_MOST_CHARACTERS_OF_A_NAME]
