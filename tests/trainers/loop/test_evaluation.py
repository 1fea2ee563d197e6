"""Steps at which a run is evaluated, and places that report its metrics."""

import pathlib
import re
import shutil

import keras
import numpy as np
import pytest

import trainers
from strategies import registry
from strategies.cluster.spec import Cluster
from tests import processes
from tests.conformance.harness import in_one_process
from tests.event_files import read_events
from tests.markers import further
from tests.processes import metrics_of, result_of, train
from tests.trainers.user_code import factories
from trainers.config.config import Config
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.parts import TrainingParts

# A compilation takes longer than the steps of these runs.
SMALL = (
    *("--model=mlp", "--hidden_units=8", "--set=report.histogram_every_steps=none"),
    "--jit_compile=off",
)
REGRESSION = (
    "--model=tests.trainers.user_code.factories:regression",
    "--dataset=tests.trainers.user_code.factories:quantities",
    "--global_batch_size=10",
    "--train_steps=40",
    "--set=report.histogram_every_steps=none",
    "--jit_compile=off",
)
REPORTED = {"loss", "mean_absolute_error", "mean_squared_logarithmic_error"}


def assembled(**settings: object) -> TrainingParts:
    config = Config().replace(model="mlp", hidden_units=(8,), **settings)
    return assemble(config, create_strategy(config, Cluster()))


# The digits have 1,438 training examples: 23 steps of 64, or one of all.
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"train_steps": 1000}, 23),
        ({"epochs": 50}, 23),
        ({"train_steps": 100}, 10),
        ({"train_steps": 19}, 1),
        ({"train_steps": 3}, 1),
        ({"train_steps": 1}, 1),
        # Epochs of one step, or two: whole ones of at least 20 steps.
        ({"train_steps": 1000, "global_batch_size": 1438}, 20),
        ({"train_steps": 1000, "global_batch_size": 500}, 21),
        ({"train_steps": 50, "global_batch_size": 1438}, 5),
        # An epoch that is longer than the run.
        ({"train_steps": 400, "global_batch_size": 1}, 40),
        ({"train_steps": 1000, "eval_every_steps": 7}, 7),
        ({"train_steps": 1000, "eval_every_steps": None}, None),
    ],
)
def test_default_interval(settings: dict[str, int], expected: int | None) -> None:
    assert assembled(**settings).eval_every_steps == expected


# The next test has the rows of one device, and the last one those of processes.
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", in_one_process())
def test_a_run_is_evaluated_ten_times_by_default(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    train(tmp_path / "run", *SMALL, f"--strategy={strategy}", "--train_steps=40")
    steps = list(range(4, 41, 4))
    rows = metrics_of(tmp_path / "run")
    assert [row["step"] for row in rows if "eval_loss" in row] == steps
    events = read_events(tmp_path / "run" / "tb" / "eval")
    assert list(events.scalars("loss")) == steps
    assert list(events.scalars("accuracy")) == steps


def test_evaluation_is_turned_off_until_the_end_and_changes_no_training(
    tmp_path: pathlib.Path,
) -> None:
    flags = (*SMALL, "--train_steps=40", "--dropout=0.2")
    often = train(tmp_path / "often", *flags)
    once = train(tmp_path / "once", *flags, "--eval_every_steps=none")
    for name, steps in (("often", list(range(4, 41, 4))), ("once", [40])):
        rows = metrics_of(tmp_path / name)
        assert [row["step"] for row in rows if "eval_loss" in row] == steps
    assert often["weights_sha256"] == once["weights_sha256"]
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert often["final"][name] == once["final"][name]


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_each_evaluation_is_of_all_examples_from_the_first(strategy: str) -> None:
    """The input stays open; an evaluation that gives up comes between."""
    assembly = assembled(strategy=strategy, eval_global_batch_size=100)
    first = assembly.evaluation.run()
    assert first.confusion is not None
    assert first.confusion.sum() == assembly.data.evaluation.num_examples == 359
    again = assembly.evaluation.run()
    assert again.means == first.means
    assert (again.confusion == first.confusion).all()
    # Of the logits: a ReLU makes 0 of nan.
    weight = assembly.model.trainable_variables[-1]
    values = weight.numpy()
    weight.assign(np.full_like(values, np.nan))
    assert np.isnan(assembly.evaluation.run().means["loss"])
    weight.assign(values)
    assert assembly.evaluation.run().means == first.means
    assert assembly.evaluation.num_traces() == 1


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """Returns the folder and the output of a run of a model without accuracy."""
    folder = tmp_path_factory.mktemp("runs") / "regression"
    done = processes.run(f"--run_dir={folder}", *REGRESSION, "--export=keras")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_every_metric_is_in_the_result_as_keras_computes_it(
    regression: tuple[pathlib.Path, str],
) -> None:
    folder, _ = regression
    final = result_of(folder)["final"]
    trained = keras.models.load_model(folder / "export" / "last.keras")
    # Exported models are not compiled.
    model = factories.regression()
    model.set_weights(trained.get_weights())
    _, (features, labels) = factories.quantities()
    expected = model.evaluate(features, labels, verbose=0, return_dict=True)
    assert set(expected) == REPORTED
    for name, value in expected.items():
        # Sums in float32 there, in float64 here.
        assert final[f"eval_{name}"] == pytest.approx(value, rel=1e-5), name
    assert final["eval_accuracy"] is None


def test_every_metric_is_in_the_last_line(
    regression: tuple[pathlib.Path, str],
) -> None:
    folder, printed = regression
    (line,) = re.findall(r"^completed \| step 40 \| (.*)$", printed, re.MULTILINE)
    shown = dict(item.split() for item in line.split(" | "))
    assert set(shown) == {"train_loss", *(f"eval_{name}" for name in REPORTED)}
    assert next(iter(shown)) == "train_loss"
    final = result_of(folder)["final"]
    for name, value in shown.items():
        # Four decimals.
        assert float(value) == pytest.approx(final[name], abs=5e-5), name


def test_every_metric_is_printed_by_evaluate_and_kept_by_the_library(
    regression: tuple[pathlib.Path, str],
) -> None:
    folder, _ = regression
    done = processes.run(
        "--mode=evaluate",
        f"--run_dir={folder}",
        *REGRESSION[:2],
    )
    assert done.returncode == 0, done.stderr
    result = trainers.TrainingResult.read(folder)
    for name in REPORTED:
        value = result.final[f"eval_{name}"]
        assert value is not None
        assert f"{name} {value:.4f}" in done.stdout
        assert f"{value:.4f}" in result._repr_html_()
        assert list(result.curve(f"eval_{name}").values())[-1] == value
    assert result.eval_accuracy is None


# ../user_code/test_examples.py evaluates a model of several outputs.
@pytest.mark.exhaustive
def test_every_output_has_its_metrics(tmp_path: pathlib.Path) -> None:
    result = train(
        tmp_path / "run",
        "--model=tests.trainers.user_code.factories:two_in_two_out",
        "--dataset=tests.trainers.user_code.factories:several",
        "--global_batch_size=10",
        "--train_steps=10",
        "--jit_compile=off",
    )
    expected = {"loss", "kind_accuracy", "kind_loss", "size_loss", "size_mae"}
    expected |= {"size_mean_squared_error"}
    names = {f"eval_{name}" for name in expected}
    always = {"train_loss", "eval_accuracy", "best_eval_loss"}
    assert set(result["final"]) == names | always
    for name in names:
        assert result["final"][name] is not None


def test_metrics_outlive_the_process(
    regression: tuple[pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    """A process that only ends a run reports the metrics from before a kill."""
    before = result_of(regression[0])
    shutil.copytree(regression[0], tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    resumed = ("--export=keras", "--resume=auto")
    after = train(tmp_path / "run", *REGRESSION, *resumed)
    assert after["final"] == before["final"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy", ["multi_worker_mirrored", further("parameter_server")]
)
def test_processes_evaluate_at_the_same_steps(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    result = train(
        tmp_path / "run", *REGRESSION, f"--strategy={strategy}", "--num_workers=2"
    )
    assert registry.traits(strategy).multi_process
    rows = [row for row in metrics_of(tmp_path / "run") if "eval_loss" in row]
    assert [row["step"] for row in rows] == list(range(4, 41, 4))
    assert {f"eval_{name}" for name in REPORTED} <= set(result["final"])
    assert (
        result["final"]["eval_mean_absolute_error"]
        == (rows[-1]["eval_mean_absolute_error"])
    )
    # Evaluations are no training.
    assert result["examples_seen"] == 40 * 10
