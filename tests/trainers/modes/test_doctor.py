"""The doctor says whether a command would train, and starts and writes nothing."""

import pathlib
import re
import subprocess
from typing import Any

import pytest

from strategies import registry
from tests import processes
from tests.cluster.test_confinement import WITHOUT_NAMESPACES, possible
from tests.markers import chosen
from trainers.config.config import Config
from trainers.modes.doctor_findings import Hardware, slow_settings
from trainers.modes.node_comparison import SUPPORTED


def consult(
    *flags: str,
    folder: pathlib.Path,
    begin: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    words = [*begin, *processes.command("--mode=doctor", *flags)]
    return processes.run_words(words, folder, **environment)


def findings_of(done: subprocess.CompletedProcess[str], kind: str) -> list[str]:
    return re.findall(rf"^{kind}: (.*)$", done.stdout, re.M)


@pytest.mark.parametrize(
    "strategy",
    chosen(registry.names(), ["mirrored", "multi_worker_mirrored", "parameter_server"]),
)
def test_every_strategy_would_start_here(strategy: str, tmp_path: pathlib.Path) -> None:
    done = consult(f"--strategy={strategy}", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *report, verdict = done.stdout.splitlines()
    assert verdict == "ready: this run would start"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
    labels = {line.split()[0] for line in report if not line.startswith(" ")}
    expected = {"command", "versions", "machine", "run", "data", "model", "replicas"}
    assert expected <= labels
    assert max(map(len, report)) <= 80
    communicates = not registry.traits(strategy).compiles_loop
    reason = f"steps of {strategy} communicate" if communicates else "layer "
    assert f"\nxla       compiles nothing: {reason}" in done.stdout
    tasks = [line.split()[0] for line in report if line.startswith(" ")]
    roles = registry.traits(strategy).roles
    assert {task.rpartition("-")[0] for task in tasks} == set(roles)


def test_settings_of_several_workers_are_checked_as_training_checks_them(
    tmp_path: pathlib.Path,
) -> None:
    workers = "--strategy=multi_worker_mirrored"
    done = consult(workers, "--set=report.replica_statistics=true", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    backup = ("--strategy=parameter_server", "--update=sync", "--backup_workers=1")
    done = consult(*backup, "--num_workers=3", folder=tmp_path)
    assert "3, with 32 examples of a step each" in done.stdout, done.stderr
    embedding = ("--dataset=clicks", "--model=wide_embedding", "--jit_compile=on")
    done = consult(workers, *embedding, folder=tmp_path)
    (problem,) = findings_of(done, "problem")
    assert problem.startswith("--jit_compile=on does not fit layer 'embedding'")


def test_problems_are_all_told_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other.txt").touch()
    forbidden = WITHOUT_NAMESPACES if possible(WITHOUT_NAMESPACES) else ()
    done = consult(
        "--strategy=multi_worker_mirrored",
        "--num_workers=3",
        "--set=strategy.collective_implementation=nccl",
        "--global_batch_size=2",
        "--dataset=tfrecord",
        "--data_path=missing.tfrecord",
        "--run_dir=run",
        f"--set=strategy.isolate_network={'required' if forbidden else 'auto'}",
        folder=tmp_path,
        begin=forbidden,
    )
    assert done.returncode == 2
    problems = findings_of(done, "problem")
    expected = (
        "--set=strategy.collective_implementation=nccl needs GPUs",
        "--run_dir=run holds files that are not a run",
        "--data_path=missing.tfrecord does not exist",
        "--global_batch_size=2 is smaller than the 3 replicas",
        *["--set=strategy.isolate_network=required cannot be met"] * bool(forbidden),
    )
    assert len(problems) == len(expected), problems
    for problem, words in zip(problems, expected, strict=True):
        assert problem.startswith(words)
    assert done.stdout.splitlines()[-1] == f"not ready: {len(expected)} problems"


def test_a_malformed_cluster_does_not_hide_what_else_is_wrong(
    tmp_path: pathlib.Path,
) -> None:
    done = consult(
        "--strategy=parameter_server",
        "--dataset=tfrecord",
        "--data_path=missing.tfrecord",
        folder=tmp_path,
        TF_CONFIG="{",
    )
    assert done.returncode == 2
    first, second = findings_of(done, "problem")
    assert first.startswith("TF_CONFIG is not JSON")
    assert second.startswith("--data_path=missing.tfrecord does not exist")


def test_another_backend_is_one_line(tmp_path: pathlib.Path) -> None:
    done = consult(folder=tmp_path, KERAS_BACKEND="jax")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: KERAS_BACKEND is jax, and this project distributes")


def test_supported_versions_are_those_that_are_installed_by_make() -> None:
    text = (processes.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, version in SUPPORTED.items():
        assert re.findall(rf'^ +"{name}==([\d.]+)\.\*', text, re.M) == [version]


ENOUGH: dict[str, int] = {
    "cores": 2,
    "gpus": 0,
    "gpus_of_driver": 0,
    "replicas": 2,
    "computing_here": 2,
}
SLOW: dict[str, tuple[dict[str, Any], dict[str, int], str]] = {
    "GPUs that TensorFlow lacks": (
        {},
        {"gpus_of_driver": 1},
        "the driver has 1 GPU and TensorFlow uses none",
    ),
    "more tasks than cores": (
        {"strategy": "multi_worker_mirrored", "num_workers": 3},
        {"computing_here": 3},
        "3 tasks that compute would share 2 cores here: use --num_workers=2",
    ),
    "more replicas than cores": (
        {"strategy": "mirrored"},
        {"replicas": 4},
        "4 replicas would take turns on 2 cores",
    ),
    "more chosen devices than cores": (
        {"strategy": "mirrored", "devices": ("cpu:4",)},
        {"replicas": 4},
        "4 replicas would take turns on 2 cores: use --devices=cpu:2 or fewer",
    ),
    "tiny shares": (
        {"strategy": "multi_worker_mirrored", "global_batch_size": 15},
        {},
        "each of 2 replicas would compute 7 examples of a step",
    ),
    "tiny shares with a backup": (
        {
            "strategy": "parameter_server",
            "update": "sync",
            "backup_workers": 1,
            "global_batch_size": 15,
        },
        {"replicas": 3},
        "each of 3 replicas would compute 7 examples of a step, which costs little "
        "more than computing none: raise --global_batch_size to 16",
    ),
    "Python between steps": ({"steps_per_loop": 1}, {}, "--steps_per_loop=1 returns"),
    "histograms": (
        {"histogram_every_steps": 9},
        {},
        "--set=report.histogram_every_steps=9 int",
    ),
    "threads": (
        {"intra_op_threads": 3},
        {},
        "--set=threads.intra_op_threads=3 is more than the 2",
    ),
}


@pytest.mark.parametrize("case", SLOW)
def test_what_is_slow_is_named_with_what_to_change(case: str) -> None:
    settings, changed, expected = SLOW[case]
    (line,) = slow_settings(
        Config().replace(**settings), Hardware(**{**ENOUGH, **changed})
    )
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({}, {}),
        ({"strategy": "mirrored"}, {}),
        # Its GPUs compute, not its cores.
        ({"strategy": "mirrored"}, {"replicas": 4, "gpus": 4, "gpus_of_driver": 4}),
        # A replica of asynchronous training computes a whole global batch.
        ({"strategy": "parameter_server", "global_batch_size": 8}, {}),
        ({"strategy": "multi_worker_mirrored", "global_batch_size": 16}, {}),
        ({"histogram_every_steps": None, "eval_every_steps": 10}, {}),
    ],
)
def test_what_is_fine_is_not_named(
    settings: dict[str, Any], changed: dict[str, int]
) -> None:
    hardware = Hardware(**{**ENOUGH, **changed})
    assert list(slow_settings(Config().replace(**settings), hardware)) == []
