"""The plan of a comparison: which commands continue it."""

import pathlib

import pytest

from tests.trainers.experiments.compare.run_factory import made_runs
from trainers.cli import flags
from trainers.experiments.arms import arms_of
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.main import main


def test_a_given_default_does_not_continue_what_the_program_decided(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    folder = tmp_path / "out"
    words = (
        *("trainers", "--mode=compare", f"--script={program}"),
        *("--strategies=mirrored", "--seeds=1", f"--run_dir={folder}"),
    )
    arms = arms_of(flags.parse(words))
    ComparisonDir(str(folder)).begin(arms, 0, (1, 1))
    # The default, which is perhaps not the batch of the program.
    assert main([*words, "--global_batch_size=64"]) == 2
    refusal = capsys.readouterr().err
    assert "--global_batch_size=64 of keras (was the program's)" in refusal


def test_a_comparison_that_was_killed_as_it_wrote_its_plan_is_begun_again(
    tmp_path: pathlib.Path,
) -> None:
    words = ("trainers", "--mode=compare", "--strategies=one_device,tower")
    arms = arms_of(flags.parse(words))
    (tmp_path / ".plan.json.writing").write_text('{"schema_version"')
    assert not ComparisonDir(str(tmp_path)).begin(arms, 0, (1, 1)).is_continued
    assert ComparisonDir(str(tmp_path)).begin(arms, 0, (1, 1)).is_continued


def test_a_complete_run_that_was_not_measured_is_run_again(
    tmp_path: pathlib.Path,
) -> None:
    words = (
        *("--mode=compare", "--strategies=one_device,tower", "--seeds=2"),
        *("--train_steps=20", "--run_dir=out"),
    )
    begun = 0

    def count() -> None:
        nonlocal begun
        begun += 1

    measured = tmp_path / "out" / "runs" / "tower" / "seed-1" / "measured.json"
    with made_runs(tmp_path, count) as compare:
        assert compare(*words).returncode == 0
        # As after a kill between the end of the run and its measurement.
        measured.unlink()
        begun = 0
        assert compare(*words).returncode == 0
    assert begun == 2, "the run, and a warm-up before it"
    assert measured.is_file()
