"""`study.json`: the search as a journal that Optuna reads.

Each line is one operation of the journal, as Optuna 4 and 5 write them
(`optuna.storages.journal.JournalFileBackend`). Each arm is a study.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trainers.experiments.measurement import FILE_NAME
from trainers.experiments.run_record import Run
from trainers.experiments.tune.halving import Trial
from trainers.experiments.tune.search import Found
from trainers.experiments.tune.tuning import Tuning

# Operations of a journal, the direction of a study, and states of a trial, by their
# numbers in Optuna.
_CREATE_STUDY, _CREATE_TRIAL = 0, 4
_MINIMIZE = 1
_COMPLETE, _PRUNED, _FAILED = 1, 2, 3
# Optuna takes any word for the process that wrote a line.
_WRITER = "keras-distribution-strategies"


def journal_of(tuning: Tuning, found: Sequence[Found]) -> str:
    """Returns the content of `study.json`."""
    lines = [
        {
            "op_code": _CREATE_STUDY,
            "study_name": each.arm.name,
            "directions": [_MINIMIZE],
        }
        for each in found
    ]
    for study_id, each in enumerate(found):
        lines += _trials(tuning, each, study_id)
    return "".join(json.dumps({**line, "worker_id": _WRITER}) + "\n" for line in lines)


def _trials(tuning: Tuning, found: Found, study_id: int) -> Iterator[dict[str, Any]]:
    distribution = json.dumps(_distribution(tuning))
    for trial in found.trials:
        runs = [found.runs[trial.value, steps] for steps in trial.losses]
        began, ended = _times(runs)
        state, value = _outcome(tuning, trial)
        losses = {s: loss for s, loss in trial.losses.items() if loss is not None}
        yield {
            "op_code": _CREATE_TRIAL,
            "study_id": study_id,
            "state": state,
            "value": value,
            "values": None,
            "params": {tuning.setting: trial.value},
            "distributions": {tuning.setting: distribution},
            "intermediate_values": losses,
            "user_attrs": {"run_dirs": [str(run.path) for run in runs]},
            "system_attrs": {},
            "datetime_start": began,
            "datetime_complete": ended,
        }


def _outcome(tuning: Tuning, trial: Trial) -> tuple[int, float | None]:
    """Returns the state of a trial and its value: the loss of its longest run."""
    last = list(trial.losses.values())[-1]
    if last is None:
        return _FAILED, None
    is_complete = tuning.rungs[-1].steps in trial.losses
    return (_COMPLETE if is_complete else _PRUNED), last


def _distribution(tuning: Tuning) -> dict[str, Any]:
    low, high = tuning.values[0], tuning.values[-1]
    is_whole = isinstance(low, int)
    return {
        "name": "IntDistribution" if is_whole else "FloatDistribution",
        "attributes": {
            # Optuna's floats on a logarithmic scale have no step.
            "step": 1 if is_whole else None,
            "low": low,
            "high": high,
            "log": tuning.is_logarithmic,
        },
    }


def _times(runs: Sequence[Run]) -> tuple[str, str]:
    """Returns when the first of several runs began and when the last ended, in UTC."""
    began = _end_of(runs[0]) - float(runs[0].measured.get("wall_seconds", 0.0))
    first, last = (
        datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()
        for seconds in (began, _end_of(runs[-1]))
    )
    return first, last


def _end_of(run: Run) -> float:
    """Returns when a run ended, in seconds since 1970; now if nothing is left of it."""
    path = run.path / FILE_NAME
    return path.stat().st_mtime if path.is_file() else time.time()
