"""Tests of strategies of several processes, as processes of the entry point."""

import pathlib
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from strategies.processes.forked_process import Process
from tests import processes
from tests.cluster import linear_loss
from tests.cluster import test_layer_state as layer_state
from tests.cluster.test_averaged_parameters import variables_of
from tests.event_files import read_events
from tests.markers import further
from tests.processes import NO_EVALUATION, ROOT, metrics_of, result_of, train
from trainers.inputs.shuffling import Order

pytestmark = pytest.mark.cluster

# 1438 examples in batches of 100: step 15 has 38. Clipping, decay and schedule all have
# an effect, and in double precision rounding cannot hide a wrong factor.
SAME = (
    "--dtype=float64",
    "--train_steps=20",
    "--global_batch_size=100",
    "--optimizer=adamw",
    "--learning_rate=0.003",
    "--learning_rate_schedule=cosine",
    "--weight_decay=0.05",
    "--clip_global_norm=0.1",
    "--summary_every_steps=1",
    "--eval_every_steps=10",
    "--set=report.eval_global_batch_size=70",
    "--set=report.histogram_every_steps=none",
    *("--checkpoint_every_steps=5", "--set=report.keep_checkpoints=9"),
    "--jit_compile=off",
)
MLP = ("--model=mlp", *SAME)
# The bound of "the same training" for adam in double precision, docs/numerics.md.
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(folder, "--strategy=one_device", *MLP)
    return folder


def assert_same_training(folder: pathlib.Path, reference: pathlib.Path) -> None:
    rows, expected = metrics_of(folder), metrics_of(reference)
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, want in zip(rows, expected, strict=True):
        for name in ("train_loss", "gradient_norm", "eval_loss", "eval_accuracy"):
            assert (name in row) == (name in want)
            if name in row:
                assert row[name] == pytest.approx(want[name], rel=TOLERANCE)
    assert_same_checkpoints(folder, reference)


def assert_same_checkpoints(folder: pathlib.Path, reference: pathlib.Path) -> None:
    """Asserts that two checkpoints have equal variables."""
    got, want = (
        tf.train.load_checkpoint(str(path / "checkpoints/step-00000020/variables"))
        for path in (folder, reference)
    )
    shapes = want.get_variable_to_shape_map()
    assert got.get_variable_to_shape_map() == shapes
    for name in shapes:
        value, expected = got.get_tensor(name), want.get_tensor(name)
        # The description of the objects is text and is left out.
        if not isinstance(expected, bytes):
            distance = np.linalg.norm(value - expected)
            assert distance <= TOLERANCE * np.linalg.norm(expected), name


CLUSTERS = {
    "multi_worker_mirrored, 2 workers": (
        "--strategy=multi_worker_mirrored",
        "--num_workers=2",
    ),
    # 38 examples on three workers make four micro-batches each of 4, 3, 3 and 3, or
    # fewer.
    "multi_worker_mirrored, 3 workers, 4 micro-batches": (
        "--strategy=multi_worker_mirrored",
        "--num_workers=3",
        "--nosoft_placement",
        "--log_device_placement",
        "--gradient_accumulation_steps=4",
    ),
    "parameter_server, 1 worker, 2 servers": (
        "--strategy=parameter_server",
        "--num_workers=1",
        "--num_ps=2",
    ),
    "parameter_server, synchronous, 2 workers, 2 servers": (
        "--strategy=parameter_server",
        "--update=sync",
        "--num_workers=2",
        "--num_ps=2",
    ),
    "parameter_server, synchronous, 3 workers, 1 server, 4 micro-batches": (
        "--strategy=parameter_server",
        "--update=sync",
        "--num_workers=3",
        "--nosoft_placement",
        "--gradient_accumulation_steps=4",
    ),
}


SYNCHRONOUS = "parameter_server, synchronous, 2 workers, 2 servers"


# The relay of two replicas below compares ten steps and more of each kind of cluster.
# test_sparse_gradients.py compares whole trainings with one device, from the initial
# weights.
@pytest.mark.exhaustive
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_same_training_as_one_device(
    cluster: str, reference: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    result = train(tmp_path / "run", *CLUSTERS[cluster], *MLP)
    assert_same_training(tmp_path / "run", reference)
    assert result["status"] == "completed"
    assert result["steps"] == 20
    assert (
        result["initial_weights_sha256"]
        == (result_of(reference)["initial_weights_sha256"])
    )
    logs = [path.read_text("utf-8") for path in (tmp_path / "run/logs").iterdir()]
    placements = [text for text in logs if "placement of operations" in text]
    assert len(placements) == ("--log_device_placement" in CLUSTERS[cluster])


WORKERS = CLUSTERS["multi_worker_mirrored, 2 workers"]
ONE_WORKER = ("--strategy=parameter_server", "--num_workers=1")


# test_sharded_optimizer_state.py has one process that continues a cluster's run.
@pytest.mark.exhaustive
def test_a_run_is_continued_under_any_other_strategy(
    reference: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    relay = (ONE_WORKER, WORKERS, ("--strategy=mirrored",))
    assert_same_in_relay(relay, MLP, reference, tmp_path)


def test_two_replicas_train_the_same_in_processes_as_in_one(
    tmp_path: pathlib.Path,
) -> None:
    """Dropout and moving statistics depend on the number of replicas."""
    flags = ("--model=tests.fault_injection.normalized_model:model", *SAME)
    train(tmp_path / "towers", "--strategy=tower", "--num_replicas=2", *flags)
    relay = (WORKERS, CLUSTERS[SYNCHRONOUS])
    assert_same_in_relay(relay, flags, tmp_path / "towers", tmp_path)


def assert_same_in_relay(
    relay: Sequence[Sequence[str]],
    flags: Sequence[str],
    reference: pathlib.Path,
    folder: pathlib.Path,
) -> None:
    """Asserts that each strategy continues the run of the one before.

    The next strategy begins five steps later, and all train to the end.

    Args:
      relay: Flags of the strategies.
      flags: Other flags.
      reference: Run folder that the first strategy continues.
      folder: Folder for the other runs.
    """
    run = reference
    for number, strategy in enumerate(relay, start=1):
        step = 5 * number
        before, run = run, folder / f"from-{step}"
        processes.copy_up_to(step, before, run)
        done = processes.run(f"--run_dir={run}", *strategy, *flags, "--resume=auto")
        assert done.returncode == 0, done.stderr
        assert f"continued at step {step}" in done.stdout
        assert_same_training(run, reference)


def test_asynchronous_workers_apply_every_gradient_once(tmp_path: pathlib.Path) -> None:
    """Gradients of a linear loss do not depend on staleness."""
    run, num_steps = tmp_path / "run", 40
    train(
        run,
        *("--strategy=parameter_server", "--num_workers=2"),
        *("--model=tests.cluster.linear_loss:model", "--dtype=float64"),
        "--dataset=tests.cluster.linear_loss:data",
        *("--optimizer=sgd", "--learning_rate=1", "--global_batch_size=4"),
        *(f"--train_steps={num_steps}", *NO_EVALUATION),
        "--set=report.histogram_every_steps=none",
    )
    weights = {v.shape: v for v in variables_of(run, num_steps, "variables").values()}
    order = Order(num_examples=linear_loss.NUM_EXAMPLES, global_batch_size=4, seed=0)
    rows, means = linear_loss.features(), np.zeros(sum(linear_loss.SIZES.values()))
    for step in range(num_steps):
        indices, _, _ = order.indices(tf.constant(step, tf.int64), 0, 1)
        means += rows[indices.numpy()].mean(axis=0)
    for part in linear_loss.parts_of(means).values():
        bound = TOLERANCE * np.abs(part).max()
        np.testing.assert_allclose(weights[part.shape], -part, rtol=0, atol=bound)


@pytest.mark.parametrize("num_workers", [2, further(3)])
def test_asynchronous_workers_learn_lose_no_update_and_report_staleness(
    num_workers: int, tmp_path: pathlib.Path
) -> None:
    flags = ("--strategy=parameter_server", f"--num_workers={num_workers}")
    result = train(tmp_path / "run", *flags, *layer_state.FLAGS)
    num_steps = layer_state.NUM_STEPS
    assert result["attempted_steps"] == num_steps
    layer_state.assert_every_update_counts(tmp_path / "run", result)
    assert result["traits"]["synchronous"] is False
    assert result["dropped_gradients"] is None
    assert_staleness_is_reported(result, num_workers, num_steps)
    saved = tf.train.load_checkpoint(
        str(tmp_path / f"run/checkpoints/step-{num_steps:08}/variables")
    )
    (counter,) = (
        name
        for name in saved.get_variable_to_shape_map()
        if name.startswith("optimizer/_iterations/")
    )
    assert saved.get_tensor(counter) == num_steps
    tags = read_events(tmp_path / "run/tb/train").plugins()
    assert {"staleness/mean", "staleness/worker-0/p95"} <= tags["scalars"]
    assert "staleness" in tags["histograms"]


def assert_staleness_is_reported(
    result: dict[str, Any], num_workers: int, num_steps: int
) -> None:
    """Asserts that at least one update was stale, and that parts equal the whole.

    The parts are the histograms of the workers.
    """
    staleness = result["staleness"]
    assert staleness["max"] >= 1
    assert 0 < staleness["mean"] <= staleness["max"]
    assert sum(staleness["histogram"].values()) == num_steps
    by_worker = staleness["by_worker"]
    assert set(by_worker) == {f"worker-{index}" for index in range(num_workers)}
    parts = sum((Counter(w["histogram"]) for w in by_worker.values()), Counter())
    assert parts == Counter(staleness["histogram"])
    assert staleness["max"] == max(w["max"] for w in by_worker.values())


def start(run_dir: pathlib.Path, *flags: str) -> Process:
    return processes.start_words(
        processes.command(f"--run_dir={run_dir}", *flags),
        ROOT,
        stdout=subprocess.DEVNULL,
    )


def started_tasks(launcher: Process, run_dir: pathlib.Path) -> list[psutil.Process]:
    """Returns a launcher's tasks, once a checkpoint shows that they train."""
    deadline = time.monotonic() + 120
    while not list(run_dir.glob("checkpoints/step-*")):
        assert launcher.poll() is None, processes.outputs_of(launcher)[1]
        assert time.monotonic() < deadline, "training did not start"
        time.sleep(0.1)
    return processes.tasks_of(launcher.pid)


LONG = (
    *("--model=mlp", "--hidden_units=8"),
    *("--eval_every_steps=none", "--set=report.histogram_every_steps=none"),
    "--train_steps=1000000",
    "--checkpoint_every_steps=50",
    # The delay leaves most of the processor to other tests.
    "--set=length.step_delay_milliseconds=10",
)
# The launcher polls or asks a task within a fraction of a second, and kills it after 10
# s; the rest of the time is for a busy machine.
SECONDS_TO_END = 15


@pytest.mark.parametrize(
    ("number", "strategy"),
    [
        further(signal.SIGKILL, "multi_worker_mirrored"),
        (signal.SIGKILL, "parameter_server"),
        # tests/fault_injection/test_random_kills.py stops a launcher in make test.
        further(signal.SIGTERM, "multi_worker_mirrored"),
        further(signal.SIGTERM, "parameter_server"),
    ],
)
def test_tasks_end_with_their_launcher(
    strategy: str, number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    launcher = start(tmp_path / "run", f"--strategy={strategy}", *LONG)
    tasks = started_tasks(launcher, tmp_path / "run")
    assert len(tasks) == (2 if strategy == "multi_worker_mirrored" else 4)
    launcher.send_signal(number)
    try:
        processes.outputs_of(launcher, SECONDS_TO_END)
    finally:
        launcher.kill()
        processes.outputs_of(launcher)
    _, alive = psutil.wait_procs(tasks, timeout=SECONDS_TO_END)
    for process in alive:
        process.kill()
    assert alive == []
    if number == signal.SIGTERM:
        assert launcher.returncode == 143


# test_task_endings.py has lost tasks, and test_restarts.py a launcher that gives up.
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_without_restarts_a_lost_worker_ends_the_run_and_is_named(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    flags = (f"--strategy={strategy}", "--max_restarts=0", *LONG)
    launcher = start(tmp_path / "run", *flags)
    tasks = started_tasks(launcher, tmp_path / "run")
    tasks[1 if strategy == "multi_worker_mirrored" else 2].kill()
    _, errors = processes.outputs_of(launcher, 60)
    _, alive = psutil.wait_procs(tasks, timeout=SECONDS_TO_END)
    assert alive == []
    assert launcher.returncode == 138
    assert "worker-1 failed first (SIGKILL)" in errors


@pytest.mark.parametrize(
    "flags",
    [
        (
            "--strategy=multi_worker_mirrored",
            "--model=convnet",
            "--set=data.input_shape=3",
        ),
        ("--strategy=parameter_server", "--num_replicas=0"),
    ],
)
def test_a_bad_request_starts_nothing(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    run_dir = tmp_path / "run"
    done = processes.run(f"--run_dir={run_dir}", "--dataset=synthetic", *flags)
    assert done.returncode == 2
    assert not run_dir.exists()
