"""The main job, through the real entry point, for every strategy of one process."""

import json
import math
import pathlib
import re
from typing import Any

import jsonschema
import pytest
from tensorboard.backend.event_processing.data_provider import (
    MultiplexerDataProvider,
)
from tensorboard.backend.event_processing.plugin_event_multiplexer import (
    EventMultiplexer,
)
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.backend_context import Context

from strategies import registry
from tests import processes
from tests.conformance.harness import in_one_process
from tests.event_files import Events, read_events
from tests.markers import chosen
from tests.processes import ROOT, metrics_of, result_of, train
from trainers.cli import flags
from trainers.main import main

STEPS = 60
FLAGS = (
    f"--train_steps={STEPS}",
    "--summary_every_steps=20",
    "--set=report.histogram_every_steps=30",
    "--eval_every_steps=30",
    "--checkpoint_every_steps=30",
    "--dropout=0.1",
    "--clip_global_norm=1",
)


@pytest.fixture(scope="module", params=chosen(in_one_process(), ["mirrored"]))
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, pathlib.Path, str]:
    """Returns the strategy, the folder and the output of a short run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = processes.run(f"--strategy={request.param}", f"--run_dir={folder}", *FLAGS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return request.param, folder, done.stdout


Run = tuple[str, pathlib.Path, str]


@pytest.fixture(scope="module")
def reference_tags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    folder = tmp_path_factory.mktemp("reference") / "run"
    processes.train(folder, "--strategy=one_device", *FLAGS)
    return tags_of(folder)


def tags_of(folder: pathlib.Path) -> dict[str, set[str]]:
    """Returns the tags of all points, without tags of a model in stages only."""
    return {
        split: {
            tag
            for tag in read_events(folder / "tb" / split).points
            if "idle" not in tag
        }
        for split in ("train", "eval")
    }


def test_result_holds_what_the_schema_asks_for(run: Run) -> None:
    strategy, folder, _ = run
    result = result_of(folder)
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(result)
    traits = registry.traits(strategy)
    assert result["status"] == "completed"
    assert result["strategy"] == strategy
    assert result["traits"]["synchronous"] == traits.synchronous
    assert result["num_replicas"] == (traits.max_replicas or 2)
    assert result["steps"] == STEPS
    # 1438 examples are 22 batches of 64 and one of 30.
    assert result["examples_seen"] == 2 * 1438 + 14 * 64
    is_alone = result["num_replicas"] == 1 and not traits.is_model_parallel
    assert (result["communication"] is None) == is_alone
    assert result["weights_sha256"] != result["initial_weights_sha256"]
    assert set(result["peak_memory_mib"]) == {"chief-0"}
    milliseconds = result["throughput"]["step_milliseconds"]
    assert 0 < milliseconds["p50"] <= milliseconds["p90"] <= milliseconds["p99"]
    parts = (milliseconds[name] for name in ("input", "compute", "rest"))
    assert sum(parts) == pytest.approx(milliseconds["total"])


def test_seconds_add_up_to_no_more_than_the_run_took(run: Run) -> None:
    seconds = result_of(run[1])["seconds"]
    assert all(value > 0 for value in seconds.values()), seconds
    assert seconds["input"] < seconds["train"]


def test_metrics_have_a_line_for_every_interval_and_evaluation(run: Run) -> None:
    rows = metrics_of(run[1])
    trained = [row for row in rows if "train_loss" in row]
    evaluated = [row for row in rows if "eval_loss" in row]
    assert [row["step"] for row in trained] == [20, 40, 60]
    assert [row["step"] for row in evaluated] == [30, 60]
    final = result_of(run[1])["final"]
    assert trained[-1]["train_loss"] == final["train_loss"]
    assert evaluated[-1]["eval_loss"] == final["eval_loss"]
    assert evaluated[-1]["eval_accuracy"] == final["eval_accuracy"]
    for row in trained:
        assert row["learning_rate"] == pytest.approx(1e-3)
        assert row["examples_per_second"] > 0
        assert row["gradient_norm"] > 0
        parts = row["step_milliseconds"]
        assert parts["total"] == pytest.approx(
            parts["input"] + parts["compute"] + parts["rest"]
        )


def test_tensorboard_scalars_are_those_of_the_metrics(run: Run) -> None:
    _, folder, _ = run
    rows = metrics_of(folder)
    events = {split: read_events(folder / "tb" / split) for split in ("train", "eval")}
    steps = {"train": {20, 40, 60}, "eval": {30, 60}}
    for split, tags in {
        "train": ("loss", "accuracy"),
        "eval": ("loss", "accuracy"),
    }.items():
        for tag in tags:
            key = f"{split}_{tag}"
            expected = {row["step"]: row[key] for row in rows if key in row}
            assert set(expected) == steps[split]
            # Events are in float32.
            assert events[split].scalars(tag) == pytest.approx(expected, rel=1e-6)
    for tag in ("learning_rate", "gradient_norm", "weight_norm", "examples_per_second"):
        expected = {row["step"]: row[tag] for row in rows if tag in row}
        assert set(expected) == {20, 40, 60}
        assert events["train"].scalars(tag) == pytest.approx(expected, rel=1e-6)
    for part in ("total", "input", "compute", "rest"):
        scalars = events["train"].scalars(f"step_milliseconds/{part}")
        assert set(scalars) == {20, 40, 60}


def test_histograms_count_every_weight_gradient_and_activation(run: Run) -> None:
    events = read_events(run[1] / "tb" / "train")
    tags = events.plugins()["histograms"]
    # Ten variables' worth of convnet: 2 convolutions, 2 dense layers.
    sizes = {
        "convolution_1/kernel": 3 * 3 * 1 * 32,
        "convolution_1/bias": 32,
        "convolution_2/kernel": 3 * 3 * 32 * 64,
        "convolution_2/bias": 64,
        "hidden/kernel": 256 * 128,
        "hidden/bias": 128,
        "logits/kernel": 128 * 10,
        "logits/bias": 10,
    }
    for name, size in sizes.items():
        for kind in ("weights", "gradients"):
            points = events.points[f"{kind}/{name}"]
            assert [point.step for point in points] == [30, 60]
            for point in points:
                assert point.value.shape == (30, 3)
                assert point.value[:, 2].sum() == size
                assert (point.value[:, 0] < point.value[:, 1]).all()
    activations = {tag for tag in tags if tag.startswith("activations/")}
    assert activations == {
        f"activations/{name}"
        for name in (
            "convolution_1",
            "pooling_1",
            "convolution_2",
            "pooling_2",
            "flatten",
            "hidden",
            "dropout",
            "logits",
        )
    }


def test_tensorboard_shows_graph_texts_images_and_hparams(run: Run) -> None:
    strategy, folder, _ = run
    train_events = read_events(folder / "tb" / "train")
    (graph,) = train_events.graphs
    assert_layers_have_scopes(GraphDef.FromString(graph))
    assert train_events.plugins()["text"] == {"configuration", "devices", "variables"}
    configuration = text_of(train_events, "configuration")
    assert f"| strategy | {strategy} |" in configuration
    assert "| dropout | 0.1 |" in configuration
    variables = text_of(train_events, "variables")
    assert "| convolution_1/kernel | (3, 3, 1, 32) | float32 | CPU:0" in variables
    kind = "stage" if registry.traits(strategy).is_model_parallel else "replica"
    assert f"| {kind} | device |" in text_of(train_events, "devices")
    images = read_events(folder / "tb" / "eval").points["confusion_matrix"]
    assert [point.step for point in images] == [30, 60]
    # Width, height, then the picture itself.
    assert images[0].value[2].startswith(b"\x89PNG")
    described = read_events(folder / "tb")
    hparams = described.plugins()["hparams"]
    assert {"_hparams_/session_start_info", "_hparams_/experiment"} <= hparams
    assert_charts_have_curves(described, tags_of(folder))
    assert_columns_of_hparams(folder / "tb")


def assert_layers_have_scopes(graph: GraphDef) -> None:
    """Checks that each layer is a scope of nodes outside functions.

    TensorBoard draws these nodes.
    """
    operations = {node.name: node for node in graph.node}
    assert len(operations) == len(graph.node)
    scopes = {scope for name in operations for scope in name.split("/")[:-1]}
    layers = {"convolution_1", "convolution_2", "hidden", "logits"}
    assert layers <= scopes
    assert not {
        f"{layer}_{number}" for layer in layers for number in "123"
    } & scopes - (layers)
    assert {"steps", "update"} <= scopes
    for node in graph.node:
        for source in node.input:
            assert source.removeprefix("^").split(":")[0] in operations, node.name
    # Edges lead through a layer to the next one.
    (logits,) = [
        node
        for node in graph.node
        if node.name.endswith("logits/MatMul") and "gradient" not in node.name
    ][:1]
    assert any("hidden" in source or "dropout" in source for source in logits.input)


def assert_columns_of_hparams(folder: pathlib.Path) -> None:
    """Checks the columns that TensorBoard's server sends to its page."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    backend = Context(TBContext(data_provider=provider))
    context = RequestContext()
    content = backend.hparams_metadata(context, "")
    experiment = backend.experiment_from_metadata(
        context, "", True, content, backend.hparams_from_data_provider(context, "", 0)
    )
    columns = [info.name for info in experiment.hparam_infos]
    assert columns[0] == "strategy"
    assert {"learning_rate", "model", "seed"} <= set(columns)
    metrics = {(info.name.group, info.name.tag) for info in experiment.metric_infos}
    evaluated = {("eval", "loss"), ("eval", "accuracy")}
    assert metrics == evaluated | {("train", "loss"), ("train", "examples_per_second")}


def assert_charts_have_curves(described: Events, tags: dict[str, set[str]]) -> None:
    """Checks that each chart of Custom Scalars but staleness draws a curve."""
    ((_, (point,)),) = [
        (tag, points)
        for tag, points in described.points.items()
        if points[0].plugin == "custom_scalars"
    ]
    layout = layout_pb2.Layout.FromString(point.value.item())
    known = {tag for of_split in tags.values() for tag in of_split}
    charts = {c.title: c.multiline.tag[0] for g in layout.category for c in g.chart}
    assert len(charts) >= 6
    for title, pattern in charts.items():
        drawn = {tag for tag in known if re.search(pattern, tag)}
        assert bool(drawn) == (title != "staleness"), title


def test_without_the_last_batch_an_epoch_has_full_ones_only(
    tmp_path: pathlib.Path,
) -> None:
    result = train(
        tmp_path / "run",
        *(
            "--model=mlp",
            "--epochs=3",
            "--global_batch_size=100",
            "--set=length.drop_last_batch=true",
            "--jit_compile=off",
        ),
    )
    # 1438 examples are 14 batches of 100 and one of 38.
    assert (result["steps"], result["examples_seen"]) == (3 * 14, 3 * 1400)


def test_tags_are_those_of_one_device(
    run: Run, reference_tags: dict[str, set[str]]
) -> None:
    _, folder, _ = run
    assert tags_of(folder) == reference_tags


def test_the_terminal_shows_progress_figures_folder_and_command(run: Run) -> None:
    strategy, folder, printed = run
    lines = printed.splitlines()
    assert lines[0].startswith(f"strategy  {strategy}: ")
    assert any(
        line.startswith(f"train | step      {STEPS}/{STEPS} | loss ") for line in lines
    )
    assert any(line.startswith("completed | step 60 | train_loss ") for line in lines)
    assert f"run       {folder}" in lines
    assert lines[-1].endswith(f"--logdir={folder} --host=localhost")
    assert (folder / "logs" / "chief-0.log").read_text("utf-8").count("\n") >= 5
    if result_of(folder)["num_replicas"] > 1:
        assert "the CPU split into 2 logical devices (no GPU found)" in lines[0]


def test_the_configuration_of_a_run_is_accepted_back(run: Run) -> None:
    strategy, folder, _ = run
    back = flags.parse(["main", f"--config={folder / 'config.json'}"])
    asked = flags.parse(
        ["main", f"--strategy={strategy}", f"--run_dir={folder}", *FLAGS]
    )
    # Another strategy may come with the file, for which `auto` decides again.
    assert back == asked


# The same configuration gives the same bits, as in ../run_dir/test_resume.py.
@pytest.mark.exhaustive
def test_the_configuration_of_a_run_trains_the_same_to_the_last_bit(
    run: Run, tmp_path: pathlib.Path
) -> None:
    strategy, folder, _ = run
    # One strategy, the default of `make train`, stands for all.
    if strategy == "mirrored":
        again = train(tmp_path / "again", f"--config={folder / 'config.json'}")
        assert again["weights_sha256"] == result_of(folder)["weights_sha256"]


def test_evaluate_repeats_the_final_evaluation(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    strategy, folder, _ = run
    before = snapshot(folder)
    argv = ["main", "--mode=evaluate", f"--run_dir={folder}", f"--strategy={strategy}"]
    # config.json has what the run has decided.
    argv += ["--jit_compile=auto"]
    assert main(argv) == 0
    printed = capfd.readouterr().out
    final = result_of(folder)["final"]
    assert f"loss {final['eval_loss']:.4f}" in printed
    assert f"accuracy {final['eval_accuracy']:.4f}" in printed
    assert snapshot(folder) == before


def test_the_default_run_learns_the_digits(tmp_path: pathlib.Path) -> None:
    """README.md has its duration, which no test asserts: machines may be busy."""
    result = train(tmp_path / "run", "--strategy=mirrored")
    assert result["final"]["eval_accuracy"] >= 0.97
    assert math.isfinite(result["final"]["eval_loss"])


def text_of(events: Events, tag: str) -> str:
    (point,) = events.points[tag]
    (text,) = point.value.reshape(-1).tolist()
    return text.decode()


def snapshot(folder: pathlib.Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
