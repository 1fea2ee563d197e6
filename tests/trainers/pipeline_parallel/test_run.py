"""A run of a model in stages: what it says and leaves, and who can continue it."""

import pathlib

import pytest

from tests import processes
from tests.event_files import read_events

pytestmark = pytest.mark.slow

FLAGS = (
    "--model=mlp",
    "--hidden_units=16,16",
    "--dtype=float64",
    "--optimizer=adamw",
    "--train_steps=20",
    "--checkpoint_every_steps=10",
    "--summary_every_steps=10",
    "--global_batch_size=100",
    # Stages are not compiled, and a compilation takes longer than these steps.
    "--jit_compile=off",
)
STAGES = (
    "--strategy=model_parallel",
    "--pipeline_stages=hidden_2,logits",
    "--set=strategy.num_microbatches=6",
)


def test_a_run_in_stages_and_its_continuation(tmp_path: pathlib.Path) -> None:
    """Half of the steps in stages, half on one device: as if it were all on one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = processes.train(whole, *FLAGS, "--strategy=one_device")
    half = (*STAGES, "--train_steps=10", *processes.NO_EVALUATION)
    first = processes.run(f"--run_dir={parts}", *FLAGS, *half)
    assert first.returncode == 0, first.stderr
    assert "stage 1 on CPU:1: hidden_2, 272 parameters\n" in first.stdout
    assert "; equally long ones would be 25% with 6 micro-batches\n" in first.stdout
    result = processes.result_of(parts)
    assert_idle_time_is_reported(parts, result["pipeline"])
    # Weights, and two slots of adam, 8 bytes each; on the host also counters.
    sizes = {"CPU:1": 3 * 8 * (16 * 16 + 16), "CPU:2": 3 * 8 * (16 * 10 + 10)}
    assert sizes.items() <= result["variable_bytes"].items()
    # 16 numbers of 100 examples cross each of two borders, there and back.
    sent = result["communication"]["bytes_per_step_per_replica"]
    assert sent == 2 * 2 * 16 * 100 * 8

    resumed = processes.train(parts, *FLAGS, "--strategy=one_device", "--resume=auto")
    assert resumed["pipeline"] is None
    assert expected["initial_weights_sha256"] == result["initial_weights_sha256"]
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        # The bound of "the same training" for adam in double precision.
        assert resumed["final"][name] == pytest.approx(
            expected["final"][name], rel=1e-10
        )


def assert_idle_time_is_reported(folder: pathlib.Path, pipeline: dict) -> None:
    assert pipeline["num_microbatches"] == 6
    assert pipeline["idle_share_of_equal_stages"] == 2 / 8
    assert [stage["device"] for stage in pipeline["stages"]] == [
        f"/device:CPU:{index}" for index in range(3)
    ]
    assert [stage["layers"] for stage in pipeline["stages"]] == [
        ["flatten", "hidden_1"],
        ["hidden_2"],
        ["logits"],
    ]
    shares = [stage["idle_share"] for stage in pipeline["stages"]]
    assert all(0 < shard_index < 1 for shard_index in shares)
    assert pipeline["idle_share"] == pytest.approx(sum(shares) / 3)
    names = {f"idle_share/stage_{index}" for index in range(3)}
    row = next(r for r in processes.metrics_of(folder) if "train_loss" in r)
    assert names | {"idle_share/of_equal_stages"} <= set(row)
    scalars = read_events(folder / "tb" / "train").plugins()["scalars"]
    assert names <= scalars
