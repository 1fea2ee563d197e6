"""Tests of workers that send approximate gradients now and the rest later."""

import copy
import functools
import pathlib
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tensorflow as tf

from strategies.config import StrategyConfig
from tests import processes
from tests.cluster import linear_loss
from tests.cluster.compressed_sums import (
    Int8,
    Method,
    PowerSgd,
    TopK,
    with_error_feedback,
)
from tests.cluster.test_averaged_parameters import assert_same_training, variables_of
from tests.cluster.test_emulated_bandwidth import needs_networks, training
from tests.markers import chosen, further
from tests.processes import (
    NO_EVALUATION,
    metrics_of,
    metrics_so_far,
    result_of,
    train,
)
from trainers.config.config import Config
from trainers.experiments.verify.arms import is_comparable
from trainers.inputs.shuffling import Order

pytestmark = pytest.mark.cluster

WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")
NUM_STEPS = 7
LINEAR = (
    *WORKERS,
    "--model=tests.cluster.linear_loss:model",
    "--dataset=tests.cluster.linear_loss:data",
    *("--dtype=float64", "--optimizer=sgd", "--learning_rate=1"),
    *("--global_batch_size=4", f"--train_steps={NUM_STEPS}"),
    *("--set=report.record_steps=true", *NO_EVALUATION),
    "--set=report.histogram_every_steps=none",
)
# Results are exact except for the order of sums of a few hundred products in double
# precision.
ROUNDING = 1e-12


def gradients_of_replicas() -> list[list[dict[str, np.ndarray]]]:
    """Returns the gradient of each weight on each replica, for each step."""
    order = Order(num_examples=linear_loss.NUM_EXAMPLES, global_batch_size=4, seed=0)
    rows = linear_loss.features()
    found = []
    for step in range(NUM_STEPS):
        indices = [order.indices(tf.constant(step, tf.int64), i, 2) for i in (0, 1)]
        found.append(
            [
                linear_loss.parts_of(rows[at.numpy()].sum(axis=0) / size.numpy())
                for at, _, size in indices
            ]
        )
    return found


def owners(sizes: Mapping[str, int], num_replicas: int) -> dict[str, np.ndarray]:
    """Returns the replica that adds up each number, in blocks of 256 of all tensors."""
    blocks = {name: -(-size // 256) for name, size in sizes.items()}
    of_replica = -(-sum(blocks.values()) // num_replicas)
    found, first = {}, 0
    for name, size in sizes.items():
        at = (first + np.arange(size) // 256) // of_replica
        found[name] = at.reshape(linear_loss.SHAPES[name])
        first += blocks[name]
    return found


OWNERS = owners({n: s for n, s in linear_loss.SIZES.items() if s >= 256}, 2)
# By setting: the method of each compressed tensor, and each replica's bytes in a step.
METHODS: dict[str, tuple[dict[str, Method], int]] = {
    # A number has 8 bytes: two matrices of 20 + 30 and 36 + 10 rows, and a vector of
    # 30.
    "powersgd:3": (
        {"matrix": PowerSgd(3, 30, seed=0), "kernel": PowerSgd(3, 10, seed=2)},
        8 * (3 * (20 + 30 + 36 + 10) + 30),
    ),
    # The tensors have three blocks and two, so each replica has up to three.
    "int8": (
        {name: Int8(of) for name, of in OWNERS.items()},
        2 * 3 * (256 + 4) + 8 * 30,
    ),
    # 6 % of the numbers, rounded up, with 8 bytes and a position of 4 bytes each.
    "topk:0.06": (
        {name: TopK(0.06) for name in linear_loss.SHAPES},
        12 * (36 + 2 + 22),
    ),
}


def recorded(run: pathlib.Path, group: str, name: str) -> np.ndarray:
    """Returns the summed gradient of a weight, or the weight after it, of each step."""
    found = []
    for step in range(1, NUM_STEPS + 1):
        with np.load(run / f"recording/step-{step:08}.npz") as arrays:
            (key,) = (k for k in arrays.files if re.match(f"{group}/.*{name}$", k))
            found.append(arrays[key])
    return np.stack(found)


def errors_in_checkpoint(run: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Returns the error that each replica kept, [replicas, ...] by weight."""
    names = {(2, *shape): name for name, shape in linear_loss.SHAPES.items()}
    kept = variables_of(run, step, "replicas").values()
    return {names[v.shape]: v for v in kept if v.shape in names}


def assert_error_feedback(run: pathlib.Path, methods: Mapping[str, Method]) -> None:
    """Compares the recorded sums and the last errors with NumPy's.

    The weights begin at zero, and the rate of SGD is 1.

    Args:
      run: Folder of a run with the flags `LINEAR`.
      methods: Method of each compressed tensor, by its name.
    """
    gradients = gradients_of_replicas()
    kept = errors_in_checkpoint(run, NUM_STEPS)
    assert set(kept) == set(methods)
    for name in linear_loss.SHAPES:
        of_weight = [[replica[name] for replica in step] for step in gradients]
        got = recorded(run, "gradients", name)
        exact = [sum(replicas) for replicas in of_weight]
        scale = np.abs(exact).max()
        np.testing.assert_allclose(
            recorded(run, "weights", name),
            -np.cumsum(got, axis=0),
            rtol=0,
            atol=ROUNDING * scale * NUM_STEPS,
        )
        if name not in methods:
            np.testing.assert_allclose(got, exact, rtol=0, atol=ROUNDING * scale)
            continue
        sums, errors = with_error_feedback(methods[name], of_weight)
        np.testing.assert_allclose(got, sums, rtol=0, atol=ROUNDING * scale)
        np.testing.assert_allclose(
            kept[name], errors, rtol=0, atol=ROUNDING * scale * NUM_STEPS
        )
        # The sums are approximate, but sums and errors together lose nothing.
        assert not np.allclose(got, exact, rtol=1e-3, atol=1e-3 * scale)
        np.testing.assert_allclose(
            sum(got) + sum(kept[name]),
            sum(exact),
            rtol=0,
            atol=ROUNDING * scale * NUM_STEPS,
        )


OVERFLOWING = (
    *(flag for flag in LINEAR if "dtype" not in flag and "model" not in flag),
    *("--model=tests.cluster.linear_loss:overflowing", "--summary_every_steps=1"),
)


def assert_nothing_is_lost_by_overflows(run: pathlib.Path) -> None:
    """Asserts that weights and errors together are the sum of all gradients.

    Args:
      run: Folder of a run with the flags `OVERFLOWING`.
    """
    scales = [row["train_loss_scale"] for row in metrics_of(run)]
    # Errors of earlier steps are not zero when the gradient of a later one overflows.
    assert any(np.diff(scales) <= 0), "nothing has overflowed after the first step"
    weights = {v.shape: v for v in variables_of(run, NUM_STEPS, "variables").values()}
    gradients = gradients_of_replicas()
    kept = errors_in_checkpoint(run, NUM_STEPS)
    assert kept
    for name, errors in kept.items():
        exact = sum(replica[name] for step in gradients for replica in step)
        found = errors.sum(axis=0) - weights[exact.shape]
        # Gradients of float16 are rounded to 11 bits.
        bound = NUM_STEPS * 2.0**-11 * max(np.abs(s[0][name]).max() for s in gradients)
        np.testing.assert_allclose(found, exact, rtol=0, atol=4 * bound)


STOPPED_AT = 3


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], pathlib.Path]:
    """Returns a function that trains once with a setting, and returns the folder."""

    @functools.cache
    def run_with(setting: str) -> pathlib.Path:
        run = tmp_path_factory.mktemp("linear") / "run"
        train(run, *LINEAR, *flags_of(setting))
        return run

    return run_with


def flags_of(setting: str) -> tuple[str, ...]:
    return (
        f"--gradient_compression={setting}",
        f"--checkpoint_every_steps={STOPPED_AT}",
    )


@pytest.mark.parametrize("setting", METHODS)
def test_sums_and_errors_are_those_of_the_papers(
    setting: str, trained: Callable[[str], pathlib.Path]
) -> None:
    run = trained(setting)
    result = result_of(run)
    methods, sent_bytes = copy.deepcopy(METHODS[setting])
    assert_error_feedback(run, methods)
    assert result["communication"]["bytes_per_step_per_replica"] == sent_bytes
    assert result["communication"]["algorithm"].startswith(
        {"p": "PowerSGD of rank 3", "i": "int8", "t": "largest 6 %"}[setting[0]]
    )
    assert result["traits"]["matches_one_device"] is False


# PowerSGD keeps the most: its bases in addition to the errors.
@pytest.mark.parametrize("setting", chosen(METHODS, ["powersgd:3"]))
def test_a_run_continues_with_the_errors_of_its_checkpoint(
    setting: str, trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    processes.copy_up_to(STOPPED_AT, trained(setting), run)
    for step in range(STOPPED_AT + 1, NUM_STEPS + 1):
        (run / f"recording/step-{step:08}.npz").unlink()
    train(run, *LINEAR, *flags_of(setting), "--resume=auto")
    methods, _ = copy.deepcopy(METHODS[setting])
    assert_error_feedback(run, methods)


SMALL = (
    *WORKERS,
    *("--model=mlp", "--hidden_units=64,32"),
    "--set=report.histogram_every_steps=none",
)
EXACT = (
    *SMALL,
    *("--dtype=float64", "--train_steps=20", "--summary_every_steps=1"),
    "--global_batch_size=4",
)


@pytest.fixture(scope="module")
def uncompressed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("uncompressed") / "run"
    train(folder, *EXACT)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["powersgd:8", "topk:1"])
def test_a_compression_that_loses_nothing_changes_nothing(
    setting: str, uncompressed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The gradients of 4 examples have a rank of at most 4.

    With a rank of exactly 4, rounding errors outside of these directions would turn the
    basis, and so grow tenfold with each step.
    """
    run = tmp_path / "run"
    result = train(run, *EXACT, f"--gradient_compression={setting}")
    # The bound of "the same training" for adam in double precision, docs/numerics.md.
    assert_same_training(run, uncompressed, 20, 1e-10)
    if setting == "topk:1":
        # A sum of two replicas has only one order.
        assert result["weights_sha256"] == result_of(uncompressed)["weights_sha256"]
    kept = variables_of(run, 20, "replicas").values()
    gradients = [v for v in kept if v.shape == (2, 64, 64)]
    assert gradients
    assert all(np.abs(v).max() < 1e-10 for v in gradients)


RESUMED = (*SMALL, "--global_batch_size=8", "--dropout=0.2", "--summary_every_steps=1")


TWO_UPDATES = """
import keras, numpy as np, tensorflow as tf


class TwoUpdates(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(20), keras.layers.Dense(1)

    def call(self, inputs):
        return self.last(self.first(inputs))

    def train_step(self, inputs):
        for layer, optimizer in ((self.first, first), (self.last, last)):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(self(inputs) ** 2)
            weights = layer.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


first, last = keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01)
model = TwoUpdates()
model.compile(first)
model.last_optimizer = last
features = np.random.default_rng(0).random((64, 20), np.float32)
model.fit(features, batch_size=16, epochs=2, verbose=0)
"""


# The tests above compress one update, and test_same_as_fit.py has steps with several.
@pytest.mark.exhaustive
def test_each_of_two_updates_of_a_step_is_compressed(tmp_path: pathlib.Path) -> None:
    """The first one has gradients and no loss, which the last one reports."""
    program = tmp_path / "program.py"
    program.write_text(TWO_UPDATES, encoding="utf-8")
    flags = ("--gradient_compression=topk:0.1", "--train_steps=3")
    result = train(tmp_path / "run", *WORKERS, *flags, f"--script={program}")
    assert result["steps"] == 3


# The test of errors in a checkpoint compares a continued run with NumPy.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["powersgd:2", "int8", "topk:0.05"])
def test_a_stopped_run_continues_to_the_same_bits(
    setting: str, tmp_path: pathlib.Path
) -> None:
    flags = (*RESUMED, f"--gradient_compression={setting}")
    whole = train(tmp_path / "whole", *flags, "--train_steps=14")
    run = tmp_path / "run"
    train(run, *flags, "--train_steps=9")
    errors = [
        v for v in variables_of(run, 9, "replicas").values() if v.shape == (2, 64, 64)
    ]
    # The replicas have different errors.
    assert errors
    assert not any(np.allclose(*of_replicas) for of_replicas in errors)
    more = ("--train_steps=14", "--resume=auto", "--steps_per_loop=2")
    continued = train(run, *flags, *more)
    assert continued["weights_sha256"] == whole["weights_sha256"]
    losses = [processes.train_losses_of(path) for path in (run, tmp_path / "whole")]
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_other_workers_and_strategies_continue_without_errors(
    tmp_path: pathlib.Path,
) -> None:
    flags = (*RESUMED, "--gradient_compression=int8")
    run = tmp_path / "run"
    train(run, *flags, "--train_steps=5")
    train(run, *flags, "--num_workers=3", "--train_steps=10", "--resume=auto")
    (errors,) = (
        v for v in variables_of(run, 10, "replicas").values() if v.shape == (3, 64, 64)
    )
    assert all(np.abs(errors).max(axis=(1, 2)) > 0)
    one = [f for f in flags if f not in (*WORKERS, "--gradient_compression=int8")]
    result = train(run, *one, "--train_steps=12", "--resume=auto")
    assert (result["strategy"], result["steps"]) == ("one_device", 12)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_weights_of_replicas_are_not_taken_for_errors(tmp_path: pathlib.Path) -> None:
    """A checkpoint of averaged weights has as many variables of the same shapes."""
    flags = (*EXACT, "--optimizer=sgd")
    averaged = tmp_path / "averaged"
    train(averaged, *flags, "--average=parameters")
    losses = []
    # The largest 100 % of the entries are all of them.
    for setting in ("none", "topk:1"):
        run = tmp_path / setting
        shutil.copytree(averaged, run)
        more = (f"--gradient_compression={setting}", "--train_steps=25")
        train(run, *flags, *more, "--resume=auto")
        losses.append(list(processes.train_losses_of(run).values())[20:])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


# A launcher continues a run as the test above does, and test_lost_tasks.py kills.
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_worker_costs_no_error(tmp_path: pathlib.Path) -> None:
    flags = (
        *RESUMED,
        *("--gradient_compression=powersgd:2", "--train_steps=24"),
        *("--checkpoint_every_steps=5", *NO_EVALUATION),
    )
    run = tmp_path / "run"
    slow = ("--set=length.step_delay_milliseconds=50", "--steps_per_loop=1")
    with processes.started(
        f"--run_dir={run}", *flags, *slow, folder=tmp_path
    ) as launcher:
        # Step 8 is between two checkpoints.
        processes.wait_until(
            lambda: processes.last_step_of(run) >= 8, "step 8", launcher
        )
        processes.task_of(launcher.pid, "worker", 1).send_signal(signal.SIGKILL)
        done = processes.end_of(launcher)
    assert done.returncode == 0, done.stderr
    result = result_of(run)
    assert (result["status"], result["restarts"]) == ("completed", 1)
    whole = train(tmp_path / "whole", *flags)
    assert result["weights_sha256"] == whole["weights_sha256"]
    kept = [variables_of(path, 24, "replicas") for path in (run, tmp_path / "whole")]
    assert kept[0].keys() == kept[1].keys()
    assert all(np.array_equal(kept[0][name], kept[1][name]) for name in kept[0])
    (errors,) = (v for v in kept[0].values() if v.shape == (2, 64, 64))
    assert not np.allclose(*errors), "replicas have equal errors"


@pytest.mark.parametrize("setting", ["topk:0.1", further("powersgd:1")])
def test_overflows_lose_no_error_of_earlier_steps(
    setting: str, tmp_path: pathlib.Path
) -> None:
    train(tmp_path / "run", *OVERFLOWING, f"--gradient_compression={setting}")
    assert_nothing_is_lost_by_overflows(tmp_path / "run")


@needs_networks
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["powersgd:4", "int8", "topk:0.01", "none"])
def test_bytes_on_the_wire_are_those_of_the_formula(
    setting: str, tmp_path: pathlib.Path
) -> None:
    flags = (
        *WORKERS,
        *("--model=mlp", "--hidden_units=1024,1024", "--global_batch_size=8"),
        *("--emulated_bandwidth_mbit=10000", f"--gradient_compression={setting}"),
        *("--train_steps=1000000", "--steps_per_loop=1", "--summary_every_steps=1"),
        *("--checkpoint_every_steps=1000000", "--eval_every_steps=1000000"),
        "--set=report.histogram_every_steps=none",
    )

    def step() -> int:
        return metrics_so_far(tmp_path / "run")[-1]["step"]

    with training(tmp_path, *flags) as running:
        first, before = step(), running.counters()
        processes.wait_until(lambda: step() >= first + 60, "60 steps", running.launcher)
        last, after = step(), running.counters()
        running.launcher.send_signal(signal.SIGTERM)
        done = processes.end_of(running.launcher)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    expected = result_of(running.folder)["communication"]["bytes_per_step_per_replica"]
    for task in ("worker-0", "worker-1"):
        sent = (after[task, "sent"] - before[task, "sent"]) / (last - first)
        # One step more or less at both ends is 4 %. Headers of Ethernet, IP and TCP are
        # 5 % of full packets, and acknowledgements 3 %. Messages of gRPC, the loss and
        # flags are some kilobytes in a step.
        assert 0.96 * expected < sent < 1.12 * expected + 6_000, (task, sent, expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--gradient_compression=powersgd:64", "--hidden_units=64,32"),
            "error: --gradient_compression=powersgd:64 compresses no gradient of this "
            "model: lower the rank to at most 31, or leave it out.",
        ),
        further(
            ("--gradient_compression=int8", "--hidden_units=2"),
            "error: --gradient_compression=int8 compresses no gradient of this model: "
            "leave it out.",
        ),
    ],
)
def test_what_compresses_nothing_is_refused(
    flags: Sequence[str], message: str, tmp_path: pathlib.Path
) -> None:
    done = processes.run(*WORKERS, "--model=mlp", *flags, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [message]
    assert list(tmp_path.iterdir()) == []


def test_a_compressed_training_is_not_comparable() -> None:
    for setting, expected in (("none", True), ("int8", False)):
        config = Config().replace(
            strategy="multi_worker_mirrored", gradient_compression=setting
        )
        assert is_comparable(config) == expected
        assert (
            StrategyConfig(
                strategy="multi_worker_mirrored", gradient_compression=setting
            ).traits.matches_one_device
            == expected
        )
