"""`study.json`: the search as a journal that Optuna reads.

Each line is one operation of the journal, as Optuna 4 and 5 write them
(`optuna.storages.journal.JournalFileBackend`). Each arm is a study.
"""

import datetime
import json
import time
from collections.abc import Sequence
from typing import Any

from trainers.experiments.measurement import FILE_NAME
from trainers.experiments.run_record import Run
from trainers.experiments.tune.halving import Trial
from trainers.experiments.tune.search import TunedArm
from trainers.experiments.tune.tuning import Tuning

# Numbers of Optuna: operations of a journal, and states of a trial.
_CREATE_STUDY, _CREATE_TRIAL = 0, 4
_COMPLETE, _PRUNED, _FAILED = 1, 2, 3


def journal_of(tuning: Tuning, found: Sequence[TunedArm]) -> str:
    """Returns the content of `study.json`."""
    lines = [
        # Of the two directions, 1 is to minimize.
        {"op_code": _CREATE_STUDY, "study_name": each.arm.name, "directions": [1]}
        for each in found
    ]
    lines += [
        {"op_code": _CREATE_TRIAL, "study_id": index, **_trial(tuning, each, trial)}
        for index, each in enumerate(found)
        for trial in each.trials
    ]
    # Optuna takes any word for the process that wrote a line.
    return "".join(
        json.dumps({**line, "worker_id": "compare"}) + "\n" for line in lines
    )


def _trial(tuning: Tuning, found: TunedArm, trial: Trial) -> dict[str, Any]:
    # From the shortest to the longest.
    runs = [found.runs[trial.value, steps] for steps in trial.losses]
    *_, last = trial.losses.values()
    is_complete = tuning.rungs[-1].steps in trial.losses
    seconds = float(runs[0].measured.get("wall_seconds", 0.0))
    return {
        "state": _FAILED if last is None else _COMPLETE if is_complete else _PRUNED,
        "value": last,
        "values": None,
        "params": {tuning.setting: trial.value},
        "distributions": {tuning.setting: json.dumps(_distribution(tuning))},
        "intermediate_values": {k: v for k, v in trial.losses.items() if v is not None},
        "user_attrs": {"run_dirs": [str(run.path) for run in runs]},
        "system_attrs": {},
        "datetime_start": _in_words(_end_of(runs[0]) - seconds),
        "datetime_complete": _in_words(_end_of(runs[-1])),
    }


def _distribution(tuning: Tuning) -> dict[str, Any]:
    # Optuna's own fields; a number on a logarithmic scale has no step.
    low, high = tuning.values[0], tuning.values[-1]
    bounds = {"low": low, "high": high, "log": tuning.is_logarithmic}
    if isinstance(low, int):
        return {"name": "IntDistribution", "attributes": {"step": 1, **bounds}}
    return {"name": "FloatDistribution", "attributes": {"step": None, **bounds}}


def _in_words(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def _end_of(run: Run) -> float:
    """Returns when a run ended, in seconds since 1970; now if nothing is left of it."""
    path = run.path / FILE_NAME
    return path.stat().st_mtime if path.is_file() else time.time()
