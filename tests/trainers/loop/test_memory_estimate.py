"""The estimate of memory against what can be counted by hand."""

import dataclasses
import pathlib

import psutil
import pytest

from strategies.cluster.spec import Cluster
from tests.conformance.harness import small_config
from trainers.loop import memory_estimate
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.memory_estimate import (
    MemoryEstimate,
    capacity_of,
    estimate_memory,
    warning_of,
)
from trainers.loop.parts import TrainingParts
from trainers.main import main

# mlp of 8x8x1 inputs, 16 hidden units and 5 classes.
PARAMETERS = 64 * 16 + 16 + 16 * 5 + 5
# Outputs of flatten, the hidden layer and the logits.
ACTIVATIONS = 64 + 16 + 5


def assembled(strategy: str = "one_device", **settings: object) -> TrainingParts:
    config = small_config(strategy=strategy, model="mlp", **settings)
    return assemble(config, create_strategy(config, Cluster()))


def test_everything_that_grows_with_the_model_is_counted() -> None:
    estimates = estimate_memory(assembled(optimizer="adam", global_batch_size=24))
    assert list(estimates) == ["CPU"]
    estimate = estimates["CPU"]
    assert estimate.weights == 4 * PARAMETERS
    assert estimate.gradients == 4 * PARAMETERS
    # Two averages for every parameter; the step and the rate are a few bytes.
    assert 0 <= estimate.optimizer - 2 * 4 * PARAMETERS < 64
    assert estimate.activations == 4 * ACTIVATIONS * 24


@pytest.mark.parametrize(("strategy", "copies"), [("mirrored", 3), ("tower", 1)])
def test_replicas_on_one_machine_share_its_memory(strategy: str, copies: int) -> None:
    assembly = assembled(
        strategy, num_replicas=3, optimizer="sgd", global_batch_size=25
    )
    estimate = estimate_memory(assembly)["CPU"]
    assert estimate.weights == copies * 4 * PARAMETERS
    assert estimate.gradients == 3 * 4 * PARAMETERS
    # 9 rows are the largest share of 25.
    assert estimate.activations == 3 * 9 * 4 * ACTIVATIONS


def test_what_replicas_keep_of_their_own_is_counted() -> None:
    assembly = assembled("parameter_averaging", num_replicas=3, optimizer="adam")
    kept = estimate_memory(assembly)["CPU"].weights - 3 * 4 * PARAMETERS
    # Weights and two averages of each of three replicas; then steps and rates.
    assert 0 <= kept - 3 * 3 * 4 * PARAMETERS < 128


def test_micro_batches_are_held_one_at_a_time() -> None:
    assembly = assembled(
        "mirrored", num_replicas=2, global_batch_size=24, gradient_accumulation_steps=4
    )
    assert estimate_memory(assembly)["CPU"].activations == 2 * 3 * 4 * ACTIVATIONS


def test_stages_hold_what_is_under_way_in_them() -> None:
    """The hidden layers hold two of three micro-batches, the logits one."""
    assembly = assembled(
        "model_parallel",
        pipeline_stages=("logits",),
        num_microbatches=3,
        global_batch_size=24,
        optimizer="sgd",
    )
    estimate = estimate_memory(assembly)["CPU"]
    assert estimate.weights == estimate.gradients == 4 * PARAMETERS
    assert estimate.activations == 8 * 4 * (2 * (64 + 16) + 5)


def test_replicas_that_do_not_wait_compute_whole_batches() -> None:
    """Workers of parameter servers do, and this test needs no cluster for it."""
    assembly = assembled("mirrored", num_replicas=2, global_batch_size=24)
    assert estimate_memory(assembly)["CPU"].activations == 2 * 12 * 4 * ACTIVATIONS
    config = assembly.config.replace(num_replicas=None, strategy="parameter_server")
    alone = dataclasses.replace(assembly, config=config)
    assert estimate_memory(alone)["CPU"].activations == 2 * 24 * 4 * ACTIVATIONS


def test_precision_counts() -> None:
    assert memory_estimate.bytes_of_activations(assembled().model) == 4 * ACTIVATIONS
    double = assembled(dtype="float64")
    assert memory_estimate.bytes_of_activations(double.model) == 8 * ACTIVATIONS
    half = assembled(dtype="mixed_bfloat16")
    assert memory_estimate.bytes_of_activations(half.model) == 2 * ACTIVATIONS
    assert estimate_memory(half)["CPU"].weights == 4 * PARAMETERS


def test_a_warning_says_what_is_needed_and_what_there_is() -> None:
    estimate = MemoryEstimate(weights=3 << 30, activations=1 << 29)
    words = "~3.5 GiB: weights 3.0, gradients 0.0, optimizer 0.0, activations 0.5"
    assert str(estimate) == words
    warning = warning_of("GPU:0", estimate, 2 << 30)
    assert warning is not None
    assert warning.startswith(
        "training will need about 3.5 GiB of the 2.0 GiB of GPU:0"
    )
    assert warning_of("GPU:0", estimate, 4 << 30) is None
    assert warning_of("GPU:0", estimate, None) is None


def test_the_memory_of_the_machine_is_that_of_every_process_on_it() -> None:
    assert capacity_of("CPU") == psutil.virtual_memory().total
    assert capacity_of("worker-1 CPU") == psutil.virtual_memory().total


def test_a_gpu_has_the_memory_that_its_driver_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver is not there on most machines that run this."""
    monkeypatch.setattr(memory_estimate, "total_memory_mib", lambda: (100, 200))
    assert capacity_of("GPU:1") == 200 << 20
    assert capacity_of("worker-0 GPU:0") == 100 << 20
    assert capacity_of("GPU:2") is None


def test_the_doctor_warns_of_what_does_not_fit(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = (
        "--mode=doctor --dataset=synthetic --set=data.num_examples=8 --model=convnet"
    )
    arguments += " --global_batch_size=100000000"
    assert main(["main", *arguments.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("memory "))
    assert "TiB" in line
    (warning,) = (line for line in lines if line.startswith("warning: training"))
    assert "--global_batch_size" in warning
    assert warning.endswith(".")
