"""Arms from finished runs: --runs."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from trainers.config.config import Config
from trainers.experiments.arms import Arm, check_name, check_names
from trainers.experiments.compare.comparison_dir import NOT_COMPARED, PLAN
from trainers.experiments.run_record import Run, read_run
from trainers.run_dir.run_dir import RunDir

# Settings that may differ between the runs of one arm.
_NOT_OF_AN_ARM = {"seed": 0, "run_dir": None, "resume": "never", "verbose": False}


def arms_and_runs(folders: Sequence[str]) -> tuple[list[Arm], list[Run]]:
    """Reads run folders; runs that differ only in their seed form one arm.

    Raises:
      UsageError: A folder holds no run or a link, a config.json is damaged, an arm has
        two runs of one seed, or there is only one arm.
    """
    found: dict[tuple[str, Config], list[tuple[int, pathlib.Path]]]
    found = collections.defaultdict(list)
    for text in folders:
        name, path = _named(text)
        for folder in _run_folders(path, text):
            folder.check_own()
            config = _with_decided_length(folder.read_config())
            # Equal keys are one arm: `Config` is frozen and hashable.
            key = (name, config.replace(**_NOT_OF_AN_ARM))
            found[key].append((config.run.seed, folder.path))
    names = _names(list(found))
    check_names(names)
    arms, runs = [], []
    for name, ((_, config), seeds) in zip(names, found.items(), strict=True):
        arms.append(Arm(name=name, config=config))
        paths: dict[int, pathlib.Path] = {}
        for seed, path in sorted(seeds):
            if seed in paths:
                raise UsageError(
                    f"--runs has two runs of {name} with seed {seed}, {paths[seed]} "
                    f"and {path}: leave one of them out."
                )
            paths[seed] = path
            runs.append(read_run(path, arm=name, seed=seed))
    return arms, runs


def _with_decided_length(config: Config) -> Config:
    """Returns a run's configuration, whose batch and length a program may give."""
    decided = {"global_batch_size", "train_steps"}
    return dataclasses.replace(config, given=config.given | decided)


def _named(text: str) -> tuple[str, pathlib.Path]:
    """Splits `name:folder`, or returns a folder only, whose name may hold a colon."""
    name, colon, path = text.partition(":")
    if not colon or pathlib.Path(text).exists():
        return "", pathlib.Path(text)
    check_name(name, f"--runs={text}")
    return name, pathlib.Path(path).expanduser()


def _run_folders(path: pathlib.Path, text: str) -> list[RunDir]:
    if RunDir(path).holds_a_run:
        return [RunDir(path)]
    # Not `Path.glob`: it fails if a folder vanishes during the search (Python 3.11), as
    # folders of checkpoints do in a running run.
    inner = []
    for folder, subfolders, names in os.walk(path):
        if "config.json" in names:
            inner.append(pathlib.Path(folder))
        if PLAN in names:
            # Of a comparison, the runs that are compared.
            subfolders[:] = set(subfolders) - set(NOT_COMPARED)
    if not inner:
        raise UsageError(
            f"--runs={text} is neither the folder of a run nor holds any: give the "
            "--run_dir of runs."
        )
    return [RunDir(each) for each in sorted(inner)]


def _names(keys: Sequence[tuple[str, Config]]) -> list[str]:
    """Returns the given names, or strategies with settings that distinguish arms."""
    settings = [config.to_dict() for _, config in keys]
    plain = [
        name or own["strategy"] for (name, _), own in zip(keys, settings, strict=True)
    ]
    names = []
    for (given, _), own, name in zip(keys, settings, plain, strict=True):
        rivals = [
            other
            for other, other_name in zip(settings, plain, strict=True)
            if other_name == name
        ]
        # A name from the user stays as it is, even if another arm has the same.
        telling = [] if given else _distinguishing_settings(own, rivals)
        names.append(" ".join([name, *telling]))
    return names


def _distinguishing_settings(
    own: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]
) -> list[str]:
    return [
        f"{setting}={as_argument(value)}"
        for setting, value in own.items()
        if any(rival.get(setting) != value for rival in rivals)
    ]
