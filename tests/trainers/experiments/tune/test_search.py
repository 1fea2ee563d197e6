"""--mode=compare --tune with real runs: interrupted, continued, reported."""

import json
import pathlib
import re
import shutil
from typing import Any

import jsonschema
import pytest

from strategies.processes.forked_process import Process
from tests import processes
from tests.markers import further
from tests.processes import ROOT
from tests.trainers.experiments.compare.run_factory import Compare
from tests.trainers.experiments.interruption import (
    ContinuedComparison,
    interrupted_and_continued,
    interrupted_and_continued_by_hand,
    results_in,
)
from trainers.config.run import LARGEST_SEED
from trainers.experiments.run_record import Run
from trainers.experiments.tune.search import loss_of

pytestmark = pytest.mark.slow

SMALL = (
    "--model=mlp",
    "--hidden_units=8",
    "--set=report.histogram_every_steps=none",
    "--checkpoint_every_steps=none",
    "--eval_every_steps=none",
    "--jit_compile=off",
    "--run_dir=comparison",
)
# The learning rate of the command line is too low for these few steps, but one of the
# last two, so that it needs no run for itself.
TUNE = ("--tune=learning_rate:1e-4..1e-1", "--tune_runs=4")
WITHOUT_TUNING = (
    "--mode=compare",
    "--strategies=one_device,tower",
    "--num_replicas=2",
    "--seeds=1",
    "--train_steps=40",
    "--learning_rate=0.01",
    *SMALL,
)
COMPARE = (*WITHOUT_TUNING, *TUNE)


RUNS = "tuning/*/*/*/measured.json"


@pytest.fixture(scope="module", params=["made", further("real")])
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ContinuedComparison:
    """Interrupted in its search, then started again, with made runs or real ones."""
    here = tmp_path_factory.mktemp("here")

    def has_four_results(process: Process) -> bool:
        assert not (here / "comparison/runs").exists()
        return len(results_in(here / "comparison", RUNS)) > 3

    if request.param == "real":
        searched = interrupted_and_continued(here, COMPARE, RUNS, has_four_results)
    else:
        searched = interrupted_and_continued_by_hand(here, COMPARE, RUNS, num_runs=4)
    assert searched.continued.returncode == 0, searched.continued.stderr
    return searched


def conclusion_of(folder: pathlib.Path) -> dict[str, Any]:
    conclusion = json.loads((folder / "comparison.json").read_text("utf-8"))
    schema = json.loads((ROOT / "docs/comparison.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(conclusion)
    return conclusion


def settings_of(run: pathlib.Path) -> dict[str, Any]:
    groups = json.loads((run / "config.json").read_text("utf-8"))
    del groups["given"]
    return {name: value for group in groups.values() for name, value in group.items()}


def test_the_budget_is_stated_before_the_search_begins(
    searched: ContinuedComparison,
) -> None:
    assert searched.interrupted.returncode == 130
    (line,) = searched.interrupted.stderr.splitlines()
    assert line.endswith("the same flags with --run_dir=comparison continue it.")
    budget = next(
        line
        for line in searched.interrupted.stdout.splitlines()
        if line.startswith("tune  ")
    )
    assert "4 of 10 steps, 2 of 20 steps; 160 steps, 50 % of whole runs" in budget


def test_a_finished_run_of_the_search_is_not_run_again(
    searched: ContinuedComparison,
) -> None:
    after = results_in(searched.folder, RUNS)
    assert {path: after[path] for path in searched.kept} == searched.kept
    ran = re.findall(r"^tune +\d+/\d+ \|", searched.continued.stdout, re.M)
    # Of each arm four runs and two longer ones.
    assert len(after) == 12
    assert len(ran) == 12 - len(searched.kept)


def test_the_runs_of_the_comparison_have_the_best_value_and_other_seeds(
    searched: ContinuedComparison,
) -> None:
    conclusion = conclusion_of(searched.folder)
    tuning = conclusion["tuning"]
    assert tuning["steps"] == {"search": 160, "with_given_values": 160, "grid": 320}
    assert tuning["seed"] == LARGEST_SEED
    assert conclusion["seeds"] == [0]
    for arm in tuning["arms"]:
        last = {
            trial["value"]: run["loss"]
            for trial in arm["trials"]
            for run in trial["runs"]
            if run["steps"] == 20
        }
        assert len(last) == 2
        assert arm["tuned"] == min(last, key=last.__getitem__)
        assert arm["tuned_loss"] == min(last.values())
        assert (arm["given"], arm["tuned"]) == (0.01, 0.1)
        assert arm["given_loss"] > arm["tuned_loss"]
        run = settings_of(searched.folder / "runs" / arm["name"] / "seed-0")
        assert run["learning_rate"] == 0.1
        assert run["train_steps"] == 40
    for path in results_in(searched.folder, RUNS):
        run = settings_of(path)
        assert run["seed"] == LARGEST_SEED
        assert run["train_steps"] == int(path.parent.name.removesuffix("-steps"))
        assert run["learning_rate"] == float(path.name)


def test_the_report_says_how_much_of_a_difference_was_only_tuning(
    searched: ContinuedComparison,
) -> None:
    (pair,) = conclusion_of(searched.folder)["tuning"]["differences"]
    # Two names of the same training.
    assert pair["at_given"] == pytest.approx(0, abs=1e-4)
    assert pair["only_tuning"] == pytest.approx(pair["at_given"] - pair["at_tuned"])
    words = "loss of tower minus that of one_device after 20 steps: "
    assert f"tuning    {words}" in searched.continued.stdout
    page = (searched.folder / "report.html").read_text("utf-8")
    for text in (page, (searched.folder / "report.md").read_text("utf-8")):
        assert words in text
        assert "was only tuning (one run each, no verdict)" in text
        assert "The search took 160 steps, 50 % of whole runs of all values" in text
    # The chart's text stays text.
    assert "loss at the end of a run" in page


def test_optuna_reads_the_study(
    searched: ContinuedComparison, tmp_path: pathlib.Path
) -> None:
    optuna = pytest.importorskip("optuna", reason="no optuna: pip install optuna")
    path = tmp_path / "study.json"
    # Optuna's storage makes a lock beside its file.
    shutil.copy(searched.folder / "study.json", path)
    journal = optuna.storages.journal
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    for arm in conclusion_of(searched.folder)["tuning"]["arms"]:
        study = optuna.load_study(study_name=arm["name"], storage=storage)
        assert study.direction.name == "MINIMIZE"
        assert study.best_params == {"learning_rate": arm["tuned"]}
        assert study.best_value == arm["tuned_loss"]
        states = [trial.state.name for trial in study.trials]
        assert sorted(states) == ["COMPLETE"] * 2 + ["PRUNED"] * 2
        for trial, known in zip(study.trials, arm["trials"], strict=True):
            losses = {run["steps"]: run["loss"] for run in known["runs"]}
            assert trial.intermediate_values == losses
            assert trial.duration.total_seconds() > 0
        # A search by Optuna's own sampler can continue from there.
        distribution = study.trials[0].distributions["learning_rate"]
        assert (distribution.low, distribution.high) == (1e-4, 1e-1)
        assert distribution.log
        assert study.ask({"learning_rate": distribution}).number == 4


def test_every_line_of_the_study_is_json(searched: ContinuedComparison) -> None:
    lines = (searched.folder / "study.json").read_text("utf-8").splitlines()
    operations = [json.loads(line)["op_code"] for line in lines]
    assert operations == [0] * 2 + [4] * 8


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*WITHOUT_TUNING,), "--tune=none (was learning_rate:0.0001..0.1 "),
        ((*COMPARE, "--tune_runs=5"), "--tune_runs=5 (was learning_rate:0.0001..0.1 "),
        ((*COMPARE, "--tune=learning_rate:1e-3..1e-1"), "--tune=learning_rate:0.001.."),
    ],
)
def test_another_plan_in_the_same_folder_is_refused(
    searched: ContinuedComparison, arguments: tuple[str, ...], named: str
) -> None:
    before = processes.contents(searched.folder)
    done = processes.run(*arguments, folder=searched.folder.parent)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert named in line
    assert processes.contents(searched.folder) == before


def test_a_search_that_has_lost_a_run_does_not_decide_anew(
    searched: ContinuedComparison, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "comparison"
    shutil.copytree(searched.folder, folder)
    shutil.rmtree(folder / "tuning/tower/20-steps/0.1")
    before = processes.contents(folder)
    done = processes.run(*COMPARE, folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "has lost comparison/tuning/tower/20-steps/0.1" in line
    assert processes.contents(folder) == before


@pytest.mark.exhaustive
def test_seeds_that_are_added_have_the_same_values(
    searched: ContinuedComparison, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(searched.folder, tmp_path / "comparison")
    before = results_in(tmp_path / "comparison", RUNS)
    done = processes.run(*COMPARE, "--seeds=2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert results_in(tmp_path / "comparison", RUNS) == before
    for arm in ("one_device", "tower"):
        run = settings_of(tmp_path / "comparison/runs" / arm / "seed-1")
        assert run["learning_rate"] == 0.1


def test_a_given_value_between_worse_ones_is_kept(
    compare: Compare, tmp_path: pathlib.Path
) -> None:
    done = compare(
        *WITHOUT_TUNING,
        "--optimizer=sgd",
        # The lower one learns nothing in these few steps, and the upper one diverges.
        "--tune=learning_rate:1e-9..1e30",
        "--tune_runs=2",
    )
    assert done.returncode == 0, done.stderr
    tuning = conclusion_of(tmp_path / "comparison")["tuning"]
    # Two runs of half the steps for each arm.
    assert tuning["steps"] == {"search": 80, "with_given_values": 120, "grid": 160}
    for arm in tuning["arms"]:
        assert [trial["value"] for trial in arm["trials"]] == [1e-9, 0.01, 1e30]
        assert (arm["best"], arm["tuned"]) == (0.01, 0.01)
        assert arm["tuned_loss"] == arm["given_loss"]
        run = settings_of(tmp_path / "comparison/runs" / arm["name"] / "seed-0")
        assert run["learning_rate"] == 0.01


_PROGRAM = """
import keras, numpy as np

rows = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), "mse", jit_compile=False)
model.fit(rows, rows[:, 0], batch_size=8)
"""


def test_the_value_before_the_search_is_that_of_a_program(
    compare: Compare, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    done = compare(
        *("--mode=compare", "--script=program.py", "--strategies=one_device"),
        *("--seeds=1", "--train_steps=4", "--run_dir=comparison"),
        *("--tune=learning_rate:0.02..0.1", "--tune_runs=2"),
    )
    assert done.returncode == 0, done.stderr
    tuning = conclusion_of(tmp_path / "comparison")["tuning"]
    assert [arm["name"] for arm in tuning["arms"]] == ["keras", "one_device"]
    for arm in tuning["arms"]:
        assert arm["given"] is None
        of_program, other = arm["trials"]
        assert of_program["value"] == 0.02
        assert arm["given_loss"] == of_program["runs"][-1]["loss"]
        assert arm["given_loss"] != other["runs"][-1]["loss"]
    assert f"; without --learning_rate {arm['given_loss']:.4f}" in done.stdout


@pytest.mark.parametrize(("eval_examples", "loss"), [(0, 0.5), (10, None)])
def test_a_loss_of_held_out_examples_that_is_nan_is_no_training_loss(
    eval_examples: int, loss: float | None
) -> None:
    result = {
        "eval_examples": eval_examples,
        # As result.json has NaN.
        "final": {"train_loss": 0.5, "eval_loss": None},
    }
    run = Run(
        arm="a", seed=0, path=pathlib.Path("a"), status="completed", result=result
    )
    assert loss_of(run) == loss


def test_an_arm_that_always_diverges_ends_it_in_one_line(compare: Compare) -> None:
    done = compare(
        *WITHOUT_TUNING,
        "--optimizer=sgd",
        "--tune=learning_rate:1e30..1e38",
        "--tune_runs=2",
    )
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: one_device diverged with all values of --learning")
    assert "choose other bounds of --tune" in line


def test_a_search_without_evaluations_says_so(compare: Compare) -> None:
    done = compare(*COMPARE, "--set=report.final_evaluation=false")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a run of one_device of 10 steps has completed without an" in done.stderr
    assert "diverged" not in done.stderr
