"""--mode=predict as a user runs it."""

import contextlib
import io
import json
import math
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import pytest

from strategies.common.console import Console
from strategies.processes.starter import ProcessStarter
from tests import processes
from tests.cluster.test_confinement import WITHOUT_NAMESPACES, possible
from tests.cluster.test_emulated_bandwidth import TOOLS, needs_networks
from tests.keras_corpus import path_of
from tests.markers import further
from tests.trainers.experiments.compare.run_factory import made_of
from trainers.cli import app, flags
from trainers.config.config import Config
from trainers.experiments import runner
from trainers.experiments.measurement import Measured
from trainers.experiments.predict.experiments import arms_of, of_an_arm
from trainers.experiments.predict.fitting import executed_with_links, measured
from trainers.experiments.predict.links import BANDWIDTHS_MBIT
from trainers.experiments.runner import ExperimentDir, Runner
from trainers.fault_tolerance.preemption import PreemptionSignals

SCHEMA = json.loads((processes.ROOT / "docs/predict.schema.json").read_text("utf-8"))
SMALL = ("--model=mlp", "--hidden_units=8", "--train_steps=20", "--jit_compile=off")
# 64 inputs, 8 hidden units, 10 classes, in four bytes each.
OWN_BYTES = 4 * (64 * 8 + 8 + 8 * 10 + 10)


def with_made_runs(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Predicts in this process, from runs made by hand.

    A step takes 1 ms, 0.5 ms for each replica, 10 us for each example and the time of
    its gradient, at 1 Gbit/s over loopback.
    """

    def measure_run(config: Config, *_: object) -> Measured:
        strategy, batch = config.strategy, config.length.global_batch_size
        replicas = strategy.num_workers or strategy.num_replicas or 1
        gradient = OWN_BYTES + (2**20 if config.model.ballast else 0)
        sent = gradient * 2 * (replicas - 1) / replicas
        milliseconds = 1 + 0.5 * replicas + 0.01 * batch / replicas
        milliseconds += sent * 8e-6
        milliseconds += sent * 8e-3 / (strategy.emulated_bandwidth_mbit or math.inf)
        if "repetition" in (config.run.run_dir or ""):
            milliseconds *= 2
        return made_of(
            config,
            seed=0,
            speed=64e3 / milliseconds,
            strategy=strategy.strategy,
            train_steps=config.length.train_steps,
            communication={"bytes_per_step_per_replica": sent} if sent else None,
        )

    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        patch.setattr(runner, "starter_of", lambda _: ProcessStarter())
        patch.setattr(runner, "measure_run", measure_run)
        code = app.run(words[2:])
    return subprocess.CompletedProcess(
        words, code, stdout.getvalue(), stderr.getvalue()
    )


def with_real_runs(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return processes.run_patiently(words, processes.PREDICT_PATIENCE_SECONDS)


Predict = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("predict", "begin", "strategy", "kind"),
    [
        (with_made_runs, (), "multi_worker_mirrored", "ring"),
        further(with_real_runs, (), "multi_worker_mirrored", "ring"),
        further(with_real_runs, (), "mirrored", "reduce_to_one"),
        further(with_real_runs, WITHOUT_NAMESPACES, "multi_worker_mirrored", "ring"),
    ],
    ids=["made", "links", "one process", "no links"],
)
def test_short_runs_here_predict_a_larger_cluster(
    predict: Predict,
    begin: Sequence[str],
    strategy: str,
    kind: str,
    tmp_path: pathlib.Path,
) -> None:
    can_have_networks = possible(()) and None not in map(shutil.which, TOOLS)
    has_links = kind == "ring" and not begin and can_have_networks
    folder = tmp_path / "predicted"
    words = processes.command(
        "--mode=predict",
        f"--strategies={strategy}",
        "--replicas=2,8,512",
        "--set=prediction.bandwidth_gbit=1.5",
        "--set=prediction.latency_microseconds=20000",
        f"--run_dir={folder}",
        *SMALL,
    )
    done = predict([*begin, *words])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "predict.json").read_text("utf-8"))
    jsonschema.validate(found, SCHEMA)
    asked = [p for p in found["predictions"] if p["bandwidth_gbit"] == 1.5]
    two, eight, too_many = (p["step_milliseconds"] for p in asked)
    # Messages one after another, of 20 ms each.
    messages = {"reduce_to_one": (2, 2), "ring": (2, 14)}[kind]
    assert 20 * messages[0] < two < 40 * messages[0]
    assert 20 * messages[1] < eight
    # Only four were measured.
    assert too_many is None
    assert "512 replicas: none: predictions are shown to hold up to 8" in done.stdout
    (fitted,) = found["strategies"]
    assert fitted["exchange"]["kind"] == kind
    own = fitted["exchange"]["gradient_bytes"]
    assert own == OWN_BYTES
    here = [m for m in fitted["measured"] if m["bandwidth_mbit"] is None]
    counts, sizes = ([m[key] for m in here] for key in ("num_replicas", "size"))
    assert counts == [2, 2, 2, 2, 3, 4, 4, 4, 4]
    some = ["own", "own", "ballast", "small"]
    assert sizes == [*some, "own", *some]
    alone = found["one_device"]["measured"]
    assert [m["examples"] for m in alone] == [64, 32, 16, 8, 8, 64]
    assert [m["size"] for m in alone] == [*["own"] * 4, "ballast", "small"]
    # Of a model this small the ballast is the least there is, a mebibyte.
    heavy = [m["gradient_bytes"] for m in here if m["size"] == "ballast"]
    assert heavy == pytest.approx([own + 2**20] * 2, abs=1)
    links = [(m["num_replicas"], m["bandwidth_mbit"]) for m in fitted["measured"]]
    expected = [(n, rate) for n in (2, 4) for rate in (100.0, 1000.0)]
    assert [p for p in links if p[1] is not None] == (expected if has_links else [])
    assert (fitted["wire_factor"] is not None) == has_links
    predicted_at = {p["bandwidth_gbit"] for p in found["predictions"]}
    assert predicted_at == ({1.5, 1.0, 0.1} if has_links else {1.5})
    warnings = [line for line in done.stderr.splitlines() if "no network is" in line]
    assert len(warnings) == (kind == "ring" and not has_links)


@pytest.mark.slow
@pytest.mark.cluster
def test_the_step_time_of_repeated_runs_is_their_median(tmp_path: pathlib.Path) -> None:
    """The second and third run take twice as long as the first one."""

    def predicted(*repetitions: str) -> tuple[dict[str, Any], str]:
        folder = tmp_path / f"predicted{len(repetitions)}"
        words = processes.command(
            *("--mode=predict", "--strategies=multi_worker_mirrored", *SMALL),
            *(f"--run_dir={folder}", *repetitions),
        )
        done = with_made_runs(words)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((folder / "predict.json").read_text("utf-8"))
        jsonschema.validate(found, SCHEMA)
        return found, done.stdout

    once, _ = predicted()
    assert once["strategies"][0]["largest_difference_of_equal_runs"] is None
    thrice, words = predicted("--set=prediction.repetitions=3")
    (arm,) = thrice["strategies"]
    assert arm["largest_difference_of_equal_runs"] == pytest.approx(1)
    assert "equal runs differ by up to 100 %" in words
    (arm_of_once,) = once["strategies"]
    pairs = (once["one_device"], thrice["one_device"]), (arm_of_once, arm)
    for one, three in pairs:
        medians = [m["step_seconds"] for m in three["measured"]]
        assert medians == pytest.approx(
            [2 * m["step_seconds"] for m in one["measured"]]
        )
    runs = {path.name for path in (tmp_path / "predicted1/runs").iterdir()}
    assert {"one_device-1-of-64", "one_device-1-of-64-repetition-3"} <= runs
    assert f"; {len(runs)} short runs" in words


# The first test has the rates that are asked for, and tests/cluster/
# test_emulated_bandwidth.py that an emulated network has its rate.
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
@needs_networks
def test_runs_over_links_take_the_time_of_their_bytes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for all programs that are forked from the template of the tests.
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    config = flags.parse(
        [
            "trainers.main",
            *("--mode=predict", "--strategies=multi_worker_mirrored"),
            # A batch of three leaves out runs with half of it.
            *("--replicas=2", "--global_batch_size=3", *SMALL),
        ]
    )
    (arm,) = arms_of(config)
    experiments = [
        experiment
        for experiment in of_an_arm(arm, num_gpus=0)
        if experiment.num_replicas == 2 and experiment.size != "small"
    ]
    folder = ExperimentDir(str(tmp_path / "predicted"), "predict")
    folder.begin()
    with PreemptionSignals() as signals:
        starter = processes.templates().starter
        runner = Runner(folder, Console(), signals, starter)
        runs = [
            measured(*run)
            for run in executed_with_links(
                experiments,
                True,
                lambda each: runner.run(each.name, each.config),
                repetitions=1,
            )
        ]
    assert [(run.size, run.bandwidth_mbit) for run in runs] == [
        ("own", None),
        ("ballast", None),
        ("ballast", 100.0),
        ("ballast", 1000.0),
    ]
    own, *heavy = (run.gradient_bytes for run in runs)
    assert heavy == pytest.approx([own + 2**20] * 3, abs=1)
    # Each of two workers sends and receives the gradient once.
    seconds = [8e-6 * heavy[0] / rate for rate in BANDWIDTHS_MBIT]
    _, _, slow, fast = (run.step_seconds for run in runs)
    assert slow > seconds[0]
    assert fast > seconds[1]


@pytest.mark.exhaustive
def test_a_keras_program_is_predicted(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "predicted"
    words = processes.command(
        *("--mode=predict", "--strategies=mirrored", "--train_steps=20"),
        *(f"--script={path_of('variational_autoencoder')}", "--global_batch_size=64"),
        f"--run_dir={folder}",
    )
    done = processes.run_patiently(words, processes.PREDICT_PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "variational_autoencoder.py on its own data" in done.stdout
    found = json.loads((folder / "predict.json").read_text("utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert found["model"] == "variational_autoencoder.py"
    (fitted,) = found["strategies"]
    own = fitted["exchange"]["gradient_bytes"]
    heavy = [m["gradient_bytes"] for m in fitted["measured"] if m["size"] == "ballast"]
    assert heavy == pytest.approx([own + 2**20] * 2, abs=1)


@pytest.mark.slow
def test_a_run_that_diverges_ends_with_its_exit_code(tmp_path: pathlib.Path) -> None:
    done = processes.run(
        *("--mode=predict", "--strategies=mirrored", *SMALL),
        *("--optimizer=sgd", "--learning_rate=1e38", f"--run_dir={tmp_path / 'out'}"),
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "one_device-1-of-64 diverged: " in done.stderr


@pytest.mark.slow
def test_a_run_that_is_refused_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """The archive is missing, which only a run finds out."""
    folder = tmp_path / "predicted"
    done = processes.run(
        "--mode=predict",
        "--strategies=mirrored",
        "--dataset=cifar10",
        f"--data_path={tmp_path / 'missing'}",
        f"--run_dir={folder}",
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()
