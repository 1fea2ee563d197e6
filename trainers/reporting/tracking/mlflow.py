"""MLflow tracker.

It uses only the client, and no global state of MLflow:
https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainers.reporting.tracking.base import TrackedRun

# Limits of a server: parameters and metrics per request, characters per value.
_MOST_PARAMS = 100
_MOST_METRICS = 1000
_MOST_CHARACTERS = 6000
_STATUS = {"completed": "FINISHED", "preempted": "KILLED"}


class MLflow:
    """Entry of a run in MLflow. Satisfies `Tracker`."""

    def __init__(self) -> None:
        # Hides log lines about new databases, and tracebacks of errors that are also
        # raised.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # The default of 7 retries would block for two minutes; the caller retries in
        # any case.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._client = MlflowClient()
        self._run_id = ""

    def begin(self, run: TrackedRun) -> str:
        """Creates or continues the entry; see `Tracker`."""
        tags = {**run.tags, **({"group": run.group} if run.group else {})}
        if "git_commit" in tags:
            # MLflow's pages show the commit under this tag.
            tags["mlflow.source.git.commit"] = tags["git_commit"]
        known = self._require(run.kept_id("mlflow"))
        if known is None:
            experiment = self._experiment(run.experiment)
            known = self._client.create_run(experiment, run_name=run.name, tags=tags)
            run.keep_id("mlflow", known.info.run_id)
        else:
            self._client.update_run(known.info.run_id, status="RUNNING")
        self._run_id = known.info.run_id
        # Parameters cannot be changed; changed settings of a resumed run become tags.
        for name, value in run.settings.items():
            text = str(value)[:_MOST_CHARACTERS]
            if known.data.params.get(name, text) != text:
                tags[f"continued_with.{name}"] = text
        for some in _in_parts(_params(run.settings, known.data.params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=some)
        batch = [RunTag(name, value) for name, value in tags.items()]
        self._client.log_batch(self._run_id, tags=batch)
        return f"run {self._run_id} in {self._client.tracking_uri}"

    def log(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Adds points; see `Tracker`."""
        # MLflow's timestamps are in milliseconds.
        when = round(1e3 * seconds)
        points = [Metric(name, value, when, step) for name, value in values.items()]
        for some in _in_parts(points, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends the entry; see `Tracker`."""
        last_step = int(figures.get("steps", 0))
        results = {f"result/{name}": value for name, value in figures.items()}
        self.log(results, last_step, time.time())
        self._client.set_tag(self._run_id, "status", status)
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(name)
        except MlflowException:
            # Another run may have created the experiment at the same time.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def _require(self, run_id: str | None) -> Any:
        """Returns the run with an id, or None if this server has no such run."""
        if run_id is None:
            return None
        try:
            return self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


def _params(settings: Mapping[str, Any], known: Mapping[str, str]) -> list[Param]:
    return [
        Param(name, str(value)[:_MOST_CHARACTERS])
        for name, value in settings.items()
        if name not in known
    ]


def _in_parts(values: list[Any], most: int) -> Iterator[list[Any]]:
    iterator = iter(values)
    while some := list(itertools.islice(iterator, most)):
        yield some
