"""Arms from finished runs: --runs."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Sequence

from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from trainers.config.config import Config
from trainers.config.program import is_left_to_program
from trainers.experiments.arms import (
    Arm,
    check_name,
    check_names,
    settings_in_effect,
)
from trainers.experiments.compare.comparison_dir import NOT_COMPARED, PLAN
from trainers.experiments.run_record import Run, read_run
from trainers.run_dir.run_dir import RunDir

# Settings that may differ between the runs of one arm.
_NOT_OF_AN_ARM = {"seed": 0, "run_dir": None, "resume": "never", "verbose": False}
# Runs with equal keys are one arm: its name, or an empty one, its settings, and the
# names of those that a program decides, which a frozen `Config` does not compare.
_Key = tuple[str, Config, frozenset[str]]


def arms_and_runs(folders: Sequence[str]) -> tuple[list[Arm], list[Run]]:
    """Reads run folders; runs that differ only in their seed form one arm.

    Raises:
      UsageError: A folder holds no run or a link, a config.json is damaged, an arm has
        two runs of one seed, or there is only one arm.
    """
    found: dict[_Key, list[tuple[int, pathlib.Path]]]
    found = collections.defaultdict(list)
    for text in folders:
        name, path = _named(text)
        for folder in _run_folders(path, text):
            folder.check_own()
            config = _with_decided_length(folder.read_config())
            decided = {n for n in config.to_dict() if is_left_to_program(n, config)}
            key = (name, config.replace(**_NOT_OF_AN_ARM), frozenset(decided))
            found[key].append((config.run.seed, folder.path))
    names = _names(list(found))
    check_names(names)
    arms, runs = [], []
    for name, ((_, config, _), seeds) in zip(names, found.items(), strict=True):
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


def _names(keys: Sequence[_Key]) -> list[str]:
    """Returns the given names, or strategies with settings that distinguish arms."""
    arms = [(name, settings_in_effect(config)) for name, config, _ in keys]
    names = []
    for given, own in arms:
        words = [given or own["strategy"]]
        rivals = [other for name, other in arms if words == [name or other["strategy"]]]
        # A name from the user stays as it is, even if another arm has the same.
        if not given:
            words += [
                f"{setting}={as_argument(value)}"
                for setting, value in own.items()
                if any(rival[setting] != value for rival in rivals)
            ]
        names.append(" ".join(words))
    return names
