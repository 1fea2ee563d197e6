"""--trackers: what MLflow and Weights & Biases have, read back with their own code."""

import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import UsageError
from tests.conformance.harness import small_config
from tests.processes import (
    checkpoints_of,
    end_of,
    environment,
    last_step_of,
    metrics_of,
    result_of,
    run,
    started,
    train,
    wait_until,
)
from tests.trainers.reporting.tracking.offline_wandb import sessions_below
from trainers.cli import flags
from trainers.config.config import Config
from trainers.config.tracking import TrackingConfig
from trainers.experiments.arms import arms_of
from trainers.experiments.command import command_line
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.experiments.compare.execution import config_of
from trainers.experiments.compare.schedule import schedule
from trainers.loop.builder import assemble, create_strategy
from trainers.reporting.tracking.base import TrackedRun, figures_of
from trainers.reporting.tracking.mlflow import MLflow
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.run_dir import RunDir

SMALL = (
    *("--model=mlp", "--hidden_units=8", "--steps_per_loop=10"),
    # A compilation takes longer than these steps.
    "--jit_compile=off",
)
SHORT = ("--train_steps=60", "--summary_every_steps=20", "--eval_every_steps=30")
EXPERIMENT = "distribution-strategies"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns an empty database, made once because MLflow takes seconds for it."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(
    empty_database: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MlflowClient:
    """Returns a client of a new MLflow database; sets W&B to keep its data here."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return MlflowClient(uri)


def only_run(store: MlflowClient, experiment: str = EXPERIMENT) -> Any:
    found = store.get_experiment_by_name(experiment)
    assert found is not None
    (one,) = store.search_runs([found.experiment_id])
    return one


def history(store: MlflowClient, run_id: str, name: str) -> dict[int, float]:
    points = store.get_metric_history(run_id, name)
    return {point.step: point.value for point in points}


def test_both_have_what_the_run_folder_has(
    store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "runs" / "one"
    result = train(
        folder,
        "--trackers=mlflow,wandb",
        "--set=tracking.tracker_group=mine",
        *SMALL,
        *SHORT,
    )
    del result["schema_version"]
    figures = {f"result/{n}": v for n, v in figures_of(result).items()}
    rows = metrics_of(folder)
    losses = {r["step"]: r["train_loss"] for r in rows if "train_loss" in r}
    speeds = {r["step"]: r["examples_per_second"] for r in rows if "train_loss" in r}
    accuracies = {r["step"]: r["eval_accuracy"] for r in rows if "eval_loss" in r}
    assert list(losses) == [20, 40, 60]
    assert list(accuracies) == [30, 60]

    one = only_run(store)
    assert one.info.status == "FINISHED"
    assert one.info.run_name == "runs/one"
    assert history(store, one.info.run_id, "train/loss") == losses
    assert history(store, one.info.run_id, "train/examples_per_second") == speeds
    assert history(store, one.info.run_id, "eval/accuracy") == accuracies
    assert one.data.params["hidden_units"] == "[8]"
    assert one.data.params["run_dir"] == str(folder)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    expected = {"strategy": "one_device", "group": "mine", "status": "completed"}
    expected |= {"git_commit": commit} if commit else {}
    assert {name: one.data.tags.get(name) for name in expected} == expected
    last = {n: v for n, v in one.data.metrics.items() if n.startswith("result/")}
    assert last == pytest.approx(figures)

    (session,) = sessions_below(folder)
    assert session.exit_code == 0
    assert (session.run.project, session.run.run_group) == (EXPERIMENT, "mine")
    assert session.run.display_name == "runs/one"
    assert "strategy=one_device" in session.run.tags
    assert session.config["hidden_units"] == [8]
    assert session.config["strategy"] == "one_device"
    by_step = {r["step"]: r["train/loss"] for r in session.rows if "train/loss" in r}
    assert by_step == pytest.approx(losses)
    by_step = {
        r["step"]: r["eval/accuracy"] for r in session.rows if "eval/accuracy" in r
    }
    assert by_step == pytest.approx(accuracies)
    assert session.summary["status"] == "completed"
    last = {n: v for n, v in session.summary.items() if n.startswith("result/")}
    assert last == pytest.approx(figures)


def has_logged(folder: pathlib.Path, step: int) -> bool:
    """Returns whether W&B has a row of a later step, after a while."""
    # To read all files without a pause takes as long as the run.
    time.sleep(0.2)
    return any(row["step"] > step for s in sessions_below(folder) for row in s.rows)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_was_killed_goes_on_as_the_same(
    store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    flags = (
        *(f"--run_dir={folder}", "--trackers=mlflow,wandb", *SMALL),
        *("--summary_every_steps=10", "--checkpoint_every_steps=20"),
    )
    endless = ("--train_steps=100000", "--set=length.step_delay_milliseconds=20")
    with started(*flags, *endless, folder=tmp_path) as process:
        wait_until(
            lambda: (
                len(checkpoints_of(folder)) > 1
                and (folder / "trackers" / "mlflow.json").exists()
                and last_step_of(folder) > 60
                and has_logged(folder, 20)
            ),
            "there is something to go on from",
            process,
        )
        process.kill()
    # The last row may be that of an evaluation, at the end of an epoch.
    before = last_step_of(folder) // 10 * 10
    last = f"--train_steps={before + 40}"
    done = run(*flags, last, "--resume=auto")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr

    one = only_run(store)
    assert one.info.status == "FINISHED"
    assert one.data.params["train_steps"] == "100000"
    assert one.data.tags["continued_with.train_steps"] == str(before + 40)
    steps = history(store, one.info.run_id, "train/loss")
    assert sorted(steps) == list(range(10, before + 41, 10))
    assert steps[before + 40] == metrics_of(folder)[-2]["train_loss"]

    first, second = sessions_below(folder)
    assert first.run.run_id == second.run.run_id
    assert first.exit_code is None
    assert second.exit_code == 0
    assert second.rows[-1]["step"] == before + 40


_TWO_FITS = """
import keras
import numpy as np
import time

x = np.random.default_rng(0).normal(size=(64, 4))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Prune(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        raise ArithmeticError


try:
    model.fit(x, x.sum(axis=1), batch_size=16, callbacks=[Prune()])
except ArithmeticError:
    pass
# Meanwhile the trackers take the end of the first one.
time.sleep(2)
model.fit(x, x.sum(axis=1), batch_size=16)
"""


# The entry of MLflow is begun again below as well.
@pytest.mark.exhaustive
def test_several_fits_of_a_program_are_one_entry(
    store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "train.py").write_text(_TWO_FITS)
    folder = tmp_path / "run"
    flags = ("--script=train.py", f"--run_dir={folder}", "--summary_every_steps=2")
    done = run(*flags, "--trackers=mlflow,wandb", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr

    losses = {r["step"]: r["train_loss"] for r in metrics_of(folder)}
    assert list(losses) == [2, 4, 6, 8]
    # The pruned one is trained again, and the other one is complete.
    again = run(*flags, "--trackers=mlflow", "--resume=auto", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    one = only_run(store)
    assert one.info.status == "FINISHED"
    assert one.data.metrics["result/steps"] == 8
    points = store.get_metric_history(one.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in points] == [*losses.items()]

    first, second = sessions_below(folder)
    assert first.run.run_id == second.run.run_id
    rows = [row for row in (*first.rows, *second.rows) if "train/loss" in row]
    assert {r["step"]: r["train/loss"] for r in rows} == pytest.approx(losses)
    assert [session.exit_code for session in (first, second)] == [1, 0]
    assert second.summary["result/steps"] == 8


# The next test has no run.
@pytest.mark.exhaustive
def test_a_tracker_that_fails_on_the_way_costs_a_warning(
    store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    flags = (*SMALL, "--train_steps=300", "--summary_every_steps=10")
    with started(
        *(f"--run_dir={folder}", "--trackers=mlflow", *flags),
        "--set=length.step_delay_milliseconds=10",
        folder=tmp_path,
    ) as process:
        wait_until(
            lambda: (folder / "trackers" / "mlflow.json").exists(), "begun", process
        )
        for path in tmp_path.glob("mlflow.db*"):
            path.unlink()
        # A file in its place that is no database.
        (tmp_path / "mlflow.db").mkdir()
        done = end_of(process)
    assert done.returncode == 0
    assert result_of(folder)["status"] == "completed"
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warning.startswith("warning: --trackers=mlflow does not take a report (")
    assert "Traceback" not in done.stderr


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the environment, which MLflow changes."""
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "_MLFLOW_TELEMETRY_SESSION_ID"):
        monkeypatch.setenv(name, "2")


@pytest.mark.usefixtures("store", "in_this_process")
def test_a_tracker_that_fails_between_two_reports_costs_a_warning(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config()
    assembly = assemble(config, create_strategy(config, Cluster()))
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    tracking = Tracking(TrackingConfig(trackers=("mlflow",)), Console())
    tracking.begin(assembly, folder, versions={}, commit=None)
    while not (folder.path / "trackers" / "mlflow.json").exists():
        time.sleep(0.01)
    for path in tmp_path.glob("mlflow.db*"):
        path.unlink()
    # A file in its place that is no database.
    (tmp_path / "mlflow.db").mkdir()
    for step in (10, 20, 30):
        tracking.log("train", {"loss": 1.0}, step)
    tracking.end({"status": "completed"})
    tracking.wait()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: --trackers=mlflow does not take a report (")


@pytest.fixture
def begun(store: MlflowClient, in_this_process: None, tmp_path: pathlib.Path) -> MLflow:
    """Returns the entry of a run."""
    return begun_in(tmp_path)


def begun_in(folder: pathlib.Path) -> MLflow:
    tracker = MLflow()
    tracker.begin(
        TrackedRun(
            name="one",
            experiment=EXPERIMENT,
            group=None,
            settings={},
            tags={},
            folder=folder / "trackers",
        )
    )
    return tracker


def test_an_entry_that_is_begun_again_is_the_same(
    store: MlflowClient, begun: MLflow, tmp_path: pathlib.Path
) -> None:
    """A program begins it for each fit, and a run when it is continued."""
    begun.log({"train/loss": 2.0}, 1, 0.0)
    begun.end("completed", {"steps": 1})
    again = begun_in(tmp_path)
    assert only_run(store).info.status == "RUNNING"
    again.log({"train/loss": 1.5}, 2, 0.0)
    again.end("completed", {"steps": 2})
    one = only_run(store)
    assert one.info.status == "FINISHED"
    assert history(store, one.info.run_id, "train/loss") == {1: 2.0, 2: 1.5}
    assert one.data.metrics["result/steps"] == 2


def test_mlflow_gets_metrics_of_any_name(store: MlflowClient, begun: MLflow) -> None:
    values = {"train/loss": 1.0, "train/acc (%) / top@1": 2.0, f"/../{'a' * 300}": 3.0}
    begun.log(values, 1, 0.0)
    begun.end("completed", {"final/acc (%)": 4.0})
    one = only_run(store)
    assert one.info.status == "FINISHED"
    long = f"_/_/{'a' * 246}"
    names = ("train/loss", "train/acc ___ / top_1", long, "result/final/acc ___")
    assert one.data.metrics == dict(zip(names, (1.0, 2.0, 3.0, 4.0), strict=True))


def test_an_entry_ends_if_mlflow_refuses_its_figures(
    store: MlflowClient, begun: MLflow
) -> None:
    with pytest.raises(MlflowException):
        begun.end("completed", {"text": "none"})  # type: ignore[dict-item]
    assert only_run(store).info.status == "FINISHED"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_refused_before_anything_is_written(
    name: str, tmp_path: pathlib.Path
) -> None:
    # Python's own way to say that a module cannot be imported. A folder of that name,
    # such as W&B makes, is not the package either.
    program = (
        f"import sys; sys.modules[{name!r}] = None\n"
        "from trainers.main import main; sys.exit(main(sys.argv))"
    )
    (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, "--run_dir=run", f"--trackers={name}"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --trackers={name} needs a package that is not ins")
    assert f"install the extra {name} (pip install " in line
    assert not (tmp_path / "run").exists()


def test_runs_of_a_comparison_have_a_group_and_folders_of_their_own() -> None:
    config = Config().replace(
        mode="compare",
        strategies=("one_device", "mirrored"),
        trackers=("mlflow",),
        tensorboard_dir="gs://bucket/it",
    )
    folder = ComparisonDir("runs/which")
    turns = schedule(arms_of(config), range(1))
    commands = {
        (t.arm.name, t.seed): [
            word
            for word in command_line(config_of(t, folder))
            if word.startswith(("--track", "--set=track", "--tensorboard"))
        ]
        for t in turns
    }
    for arm in ("one_device", "mirrored"):
        assert commands[arm, None] == []
        assert commands[arm, 0] == [
            f"--tensorboard_dir=gs://bucket/it/which/{arm}",
            "--trackers=mlflow",
            "--set=tracking.tracker_group=which",
        ]


@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_of_a_cluster_only_the_chief_reports(
    strategy: str, store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    flags = (f"--strategy={strategy}", "--num_workers=2", *SMALL, *SHORT)
    train(folder, "--trackers=mlflow,wandb", *flags)
    one = only_run(store)
    assert one.data.tags["strategy"] == strategy
    assert list(history(store, one.info.run_id, "eval/loss")) == [30, 60]
    assert len(store.get_metric_history(one.info.run_id, "train/loss")) == 3
    (session,) = sessions_below(folder)
    assert "num_replicas=2" in session.run.tags


@pytest.mark.exhaustive
def test_a_comparison_reports_each_run_once(
    store: MlflowClient, tmp_path: pathlib.Path
) -> None:
    events = tmp_path / "events"
    done = run(
        *("--mode=compare", f"--run_dir={tmp_path / 'which'}", "--seeds=1"),
        *("--strategies=one_device,mirrored", "--trackers=mlflow", *SMALL, *SHORT),
        f"--tensorboard_dir={events}",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    experiment = store.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    runs = store.search_runs([experiment.experiment_id])
    names = {(r.info.run_name, r.data.tags["group"]) for r in runs}
    assert names == {("one_device/seed-0", "which"), ("mirrored/seed-0", "which")}
    assert len(runs) == 2
    for arm in ("one_device", "mirrored"):
        assert list((events / "which" / arm / "seed-0" / "train").glob("events.*"))


@pytest.mark.parametrize("mode", ["evaluate", "verify"])
def test_modes_that_are_no_training_refuse_trackers(mode: str) -> None:
    several = ["--strategies=one_device"] if mode == "verify" else []
    words = ["--run_dir=runs/one", "--trackers=wandb"]
    with pytest.raises(UsageError, match="--trackers=wandb is not used by --mode"):
        flags.parse(["main", f"--mode={mode}", *several, *words])


def test_one_twice_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(UsageError, match="has 'wandb' twice"):
        Config().replace(trackers=("wandb", "wandb"))
    with pytest.raises(UsageError, match="choose one of mlflow, wandb"):
        Config().replace(trackers=("neptune",))
