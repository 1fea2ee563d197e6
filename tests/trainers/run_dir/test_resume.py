"""A run that is killed and resumed is the run that was never killed."""

import pathlib
import shutil

import pytest

from strategies import registry
from tests import processes
from tests.markers import chosen
from trainers.main import main
from trainers.write_tfrecord import make_examples
from trainers.write_tfrecord import write as write_records

pytestmark = pytest.mark.slow

FLAGS = (
    "--model=mlp",
    "--hidden_units=16",
    "--dropout=0.3",
    "--optimizer=adam",
    "--train_steps=600",
    "--steps_per_loop=5",
    "--summary_every_steps=20",
    "--set=report.histogram_every_steps=none",
    # Between the last one and the kill there are steps to be done again, and lines
    # of metrics.jsonl to be taken back.
    "--checkpoint_every_steps=70",
    "--set=report.keep_checkpoints=2",
)

IN_ONE_PROCESS = [
    name for name in registry.names() if not registry.traits(name).multi_process
]


# Replicas of these share a batch.
WITH_STATISTICS = [
    name
    for name in IN_ONE_PROCESS
    if registry.traits(name).matches_one_device
    and registry.traits(name).is_distributed
    and not registry.traits(name).is_model_parallel
]


def steps_of(run: pathlib.Path) -> list[int]:
    return [row["step"] for row in processes.metrics_of(run)]


def noise_scales_of(run: pathlib.Path) -> list[float | None]:
    return [row.get("gradient_noise_scale") for row in processes.metrics_of(run)]


@pytest.mark.parametrize("strategy", chosen(IN_ONE_PROCESS, ["mirrored"]))
def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(
    tmp_path: pathlib.Path, strategy: str
) -> None:
    flags: tuple[str, ...] = (*FLAGS, f"--strategy={strategy}")
    if strategy in WITH_STATISTICS:
        flags += ("--set=report.replica_statistics=true",)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    with processes.started(*flags, f"--run_dir={undisturbed}", folder=tmp_path) as one:
        with processes.started(*flags, f"--run_dir={killed}", folder=tmp_path) as other:
            processes.wait_until(
                lambda: processes.last_step_of(killed) >= 200, "step 200", other
            )
            other.kill()
            other.wait()
        finished = processes.end_of(one)
    assert finished.returncode == 0, finished.stderr
    assert not (killed / "result.json").exists()
    last = int(processes.checkpoints_of(killed)[-1].removeprefix("step-"))
    assert last >= 140

    resumed = processes.run(
        *flags, f"--run_dir={killed}", "--resume=auto", folder=tmp_path
    )
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr == ""
    assert f"continued at step {last}\n" in resumed.stdout
    result, expected = processes.result_of(killed), processes.result_of(undisturbed)
    for key in ("status", "steps", "examples_seen", "initial_weights_sha256"):
        assert result[key] == expected[key]
    assert (expected["continued"], result["continued"]) == (False, True)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["final"]["eval_loss"] == expected["final"]["eval_loss"]
    assert processes.checkpoints_of(killed) == processes.checkpoints_of(undisturbed)
    # Each step once and in order, whatever was written before the kill. The same
    # losses are added up, but in other parts: rounding differs.
    assert processes.train_losses_of(killed) == pytest.approx(
        processes.train_losses_of(undisturbed), rel=1e-12
    )
    assert steps_of(killed) == steps_of(undisturbed)
    noise_scales = noise_scales_of(killed)
    assert noise_scales == noise_scales_of(undisturbed)
    assert any(noise_scales) == (strategy in WITH_STATISTICS)


# A signal before the first step leaves such a run as well, in
# ../fault_tolerance/test_divergence_and_signals.py.
@pytest.mark.exhaustive
def test_a_run_without_checkpoints_begins_again(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    # Evaluated at the end alone, so that lines are those of summaries and a last one.
    flags = [*FLAGS, "--train_steps=60", "--eval_every_steps=none", f"--run_dir={run}"]
    assert main(["main", *flags]) == 0
    expected = processes.result_of(run)
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    assert main(["main", *flags, "--resume=auto"]) == 0
    assert "continued" not in capfd.readouterr().out
    assert processes.result_of(run)["weights_sha256"] == expected["weights_sha256"]
    assert steps_of(run) == [20, 40, 60, 60]


def test_data_that_have_grown_are_remarked_upon(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "train.tfrecord"
    flags = ["main", "--dataset=tfrecord", f"--data_path={data}", "--model=mlp"]
    flags += ["--jit_compile=off", f"--run_dir={tmp_path / 'run'}"]
    flags += processes.NO_EVALUATION
    write_records(data, *make_examples(100, seed=0))
    assert main([*flags, "--train_steps=2"]) == 0
    assert main([*flags, "--train_steps=3", "--resume=auto"]) == 0
    assert capfd.readouterr().err == ""
    write_records(data, *make_examples(200, seed=0))
    assert main([*flags, "--train_steps=4", "--resume=auto"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "on 80 examples, with 20 held out, and the data have 160 and 40" in line
