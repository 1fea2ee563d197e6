"""--on_divergence=rollback: back to a checkpoint, and on with a smaller rate."""

import pathlib
import re

import pytest

from strategies import registry
from strategies.common.errors import DivergedError
from tests import processes
from tests.conformance.harness import in_one_process
from tests.markers import further
from tests.trainers.run_dir.test_checkpoints import Run
from trainers.fault_tolerance.rollback import Rollbacks
from trainers.main import main
from trainers.model.optimizers.learning_rate import LearningRateScale

# A step makes -2.5 w of a weight w, as 1 - 0.01 * 350 is that, and float32 ends after
# some fifty. With half the rate it makes -0.75 w. Gradients count for little here.
DIVERGING = (
    "--model=mlp",
    "--hidden_units=8",
    "--optimizer=sgd",
    "--learning_rate=0.01",
    "--weight_decay=350",
    "--on_divergence=rollback",
    "--checkpoint_every_steps=10",
    "--summary_every_steps=1",
    *processes.NO_EVALUATION,
    "--set=report.histogram_every_steps=none",
)
# A compilation takes longer than these steps.
QUICK = (*DIVERGING, "--jit_compile=off")
LINE = re.compile(
    r"warning: .* step (?P<step>\d+): back to step (?P<back_to>\d+), with the learning "
    r"rate times (?P<factor>[\d.]+) \(rollback (?P<count>\d+) of (?P<most>\d+)\)\."
)


def strategies() -> list[tuple[str, ...]]:
    """Returns the flags of every strategy of one process, and update mode."""
    found: list[tuple[str, ...]] = []
    for name in in_one_process():
        alone = registry.traits(name).max_replicas == 1
        flags = (f"--strategy={name}", *([] if alone else ["--num_replicas=2"]))
        ways = [f"--update={way}" for way in registry.traits(name).updates]
        found += [(*flags, way) for way in ways] or [flags]
    return found


# One with several copies of the weights, one asynchronous; the other tests have one
# copy.
REPRESENTATIVE = (
    ("--strategy=parameter_averaging", "--num_replicas=2"),
    ("--strategy=tower", "--num_replicas=2", "--update=async"),
)


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Our lines on standard error: TensorFlow warns of many runs in one process."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if line.startswith(("warning: ", "error: "))]


def rates(run: pathlib.Path) -> dict[int, float]:
    """Returns the learning rate of each line of metrics.jsonl, by step."""
    rows = [row for row in processes.metrics_of(run) if "train_loss" in row]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)), "lines of steps that were taken back"
    return {row["step"]: row["learning_rate"] for row in rows}


@pytest.mark.parametrize(
    "strategy",
    [s if s in REPRESENTATIVE else further(s) for s in strategies()],
    ids=" ".join,
)
def test_every_strategy_goes_back_and_completes_with_half_the_rate(
    strategy: tuple[str, ...], tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = (*DIVERGING, *strategy, "--train_steps=90", f"--run_dir={run}")
    assert main(["main", *flags]) == 0
    (line,) = said(capfd)
    found = LINE.fullmatch(line)
    assert found is not None, line
    step, back_to = int(found["step"]), int(found["back_to"])
    assert 30 < step < 70, "not where float32 ends"
    assert step - 10 <= back_to < step
    assert (found["factor"], found["count"], found["most"]) == ("0.5", "1", "3")
    expected = {s: 0.01 if s <= back_to else 0.005 for s in range(1, 91)}
    # The rate is a number of single precision.
    assert rates(run) == pytest.approx(expected, rel=1e-6)
    result = processes.result_of(run)
    assert (result["status"], result["steps"], result["rollbacks"]) == (
        *("completed", 90),
        1,
    )
    assert result["attempted_steps"] == 90, "those that were taken back are counted"
    assert "step-00000000" not in processes.checkpoints_of(run), "more than three"


def test_a_resumed_run_keeps_the_smaller_rate(tmp_path: pathlib.Path) -> None:
    """Also if it is not to go back again, when steps hold the rate as a number."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = ("main", *QUICK, "--train_steps=100")
    assert main([*flags, f"--run_dir={whole}"]) == 0
    processes.copy_up_to(80, whole, parts)
    resumed = ("--resume=auto", "--on_divergence=stop")
    assert main([*flags, *resumed, f"--run_dir={parts}"]) == 0
    results = [processes.result_of(run) for run in (whole, parts)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["rollbacks"] == results[1]["rollbacks"] == 1
    assert rates(parts)[100] == pytest.approx(0.005, rel=1e-6)


# 1 - 0.01 * 30000 is -299, and then -149 and -74: all of them diverge, the first after
# eight steps.
HOPELESS = (*QUICK, "--weight_decay=30000", "--checkpoint_every_steps=5")


def test_a_run_that_diverges_there_again_goes_further_back_and_stops_in_the_end(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = (
        *HOPELESS,
        "--train_steps=60",
        "--set=guard.max_rollbacks=2",
        f"--run_dir={run}",
    )
    assert main(["main", *flags]) == 3
    *lines, error = said(capfd)
    rollbacks = [LINE.fullmatch(line) for line in lines]
    assert [r and (r["factor"], r["count"], r["most"]) for r in rollbacks] == [
        ("0.5", "1", "2"),
        ("0.25", "2", "2"),
    ]
    first, second = (int(r["back_to"]) for r in rollbacks if r)
    assert second < first
    assert "after going back 2 times: training has diverged" in error
    result = processes.result_of(run)
    assert (result["status"], result["rollbacks"]) == ("diverged", 2)
    newest = processes.checkpoints_of(run)[-1]
    assert f"step {result['steps'] + 1}," in error
    assert newest == f"step-{result['steps'] // 5 * 5:08d}"


def test_a_run_that_diverges_at_once_goes_back_to_the_beginning(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = (*QUICK, "--learning_rate=1e30", "--set=guard.max_rollbacks=1")
    assert main(["main", *flags, "--train_steps=9", f"--run_dir={run}"]) == 3
    line, _ = said(capfd)
    assert "back to step 0, with the learning rate times 0.5 (rollback 1 of 1)" in line
    assert processes.checkpoints_of(run) == ["step-00000000"]


# The last test has it without a run, and ../run_dir/test_checkpoints.py a run that is
# continued.
@pytest.mark.exhaustive
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = (*QUICK, "--train_steps=20", f"--run_dir={run}")
    assert main(["main", *flags]) == 0
    (run / "checkpoints/step-00000020/variables.index").write_bytes(b"")
    capfd.readouterr()
    resumed = (*flags, "--train_steps=90", "--resume=auto")
    assert main(["main", *resumed, "--checkpoint_every_steps=none"]) == 0
    *damaged, line = said(capfd)
    assert len(damaged) == 2, "when it is continued, and when it goes back"
    assert "step-00000020 is damaged" in damaged[0]
    assert "checkpoint of step 20 is passed over" in damaged[1]
    assert "back to step 10" in line


def test_checkpoints_of_a_training_that_is_given_up_are_removed(
    tmp_path: pathlib.Path,
) -> None:
    kept = Run(tmp_path)
    for step in (10, 20, 30):
        kept.save(step)
    lines: list[str] = []
    rollbacks = Rollbacks(kept.checkpoints, LearningRateScale(False), 9, lines.append)
    assert rollbacks.go_back(DivergedError(35, "the loss is nan at")) is not None
    assert (int(kept.step.numpy()), kept.checkpoints.steps()) == (30, [10, 20, 30])
    assert rollbacks.go_back(DivergedError(35, "the loss is nan at")) is not None
    assert (int(kept.step.numpy()), kept.checkpoints.steps()) == (20, [10, 20])
    # It came further than before, and has saved there.
    kept.save(40)
    assert rollbacks.go_back(DivergedError(41, "the loss is nan at")) is not None
    assert (int(kept.step.numpy()), kept.checkpoints.steps()) == (40, [10, 20, 40])
    assert [line.partition(" (")[2] for line in lines] == [
        f"rollback {count} of 9)." for count in (1, 2, 3)
    ]


def test_a_damaged_checkpoint_is_no_place_to_go_back_to(tmp_path: pathlib.Path) -> None:
    kept = Run(tmp_path)
    for step in (10, 20):
        kept.save(step)
    (tmp_path / "step-00000020/variables.index").write_bytes(b"")
    lines: list[str] = []
    rollbacks = Rollbacks(kept.checkpoints, LearningRateScale(False), 9, lines.append)
    assert rollbacks.go_back(DivergedError(25, "the loss is nan at")) is not None
    assert int(kept.step.numpy()) == 10
    damaged, line = lines
    assert damaged.startswith("checkpoint of step 20 is passed over: ")
    assert "back to step 10, with the learning rate times 0.5" in line
