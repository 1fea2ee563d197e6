"""Tests of the folder of an experiment."""

import pathlib

from trainers.experiments.runner import ExperimentDir


def test_a_refused_experiment_leaves_only_files_of_others(
    tmp_path: pathlib.Path,
) -> None:
    folder = ExperimentDir(str(tmp_path / "out"), "explain")
    folder.begin()
    # Such as a file that the program of --script writes before it is refused.
    own = folder.path / "model.keras"
    own.write_text("weights", encoding="utf-8")
    folder.take_back()
    assert list(folder.path.iterdir()) == [own]
    alone = ExperimentDir(str(tmp_path / "alone"), "explain")
    alone.begin()
    alone.take_back()
    assert not alone.path.exists()
