"""Tests of an outer optimizer on the average change of weights (DiLoCo)."""

import itertools
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.local_sgd.averages import due_steps, fragments
from tests import processes
from tests.cluster.test_averaged_parameters import variables_of
from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import LAYOUTS, UPDATES, Subject, small_config
from tests.conformance.test_parameter_averaging import (
    EVERY,
    FEATURES,
    FLAGS,
    RARELY,
    STRATEGY,
    Replica,
    continued,
    divided,
    linear,
    mean_over,
)
from tests.conformance.test_same_training import (
    TOLERANCES,
    assert_same_training,
    of_one_device,
)
from tests.markers import further
from trainers.loop.parts import TrainingParts
from trainers.main import main

NUM_STEPS = 17


# The tests by hand below have more averages of the same formulas, and mutations.py has
# a gradient of the other sign.
@pytest.mark.exhaustive
@pytest.mark.parametrize("replicas", [1, 3])
def test_sgd_of_rate_1_after_every_step_is_one_device(replicas: int) -> None:
    """The anchor minus the outer gradient is the mean of the replicas' weights."""
    config = small_config(
        strategy=STRATEGY,
        num_replicas=replicas,
        model="mlp",
        dtype="float64",
        sync_every_steps=1,
        outer_optimizer="sgd",
        outer_learning_rate=1.0,
        **UPDATES["sgd"],
    )
    subject = Subject.of(config)
    for name, layout in LAYOUTS.items():
        assert_same_training(
            subject.run(layout),
            of_one_device("mlp", "sgd", "float64", name),
            TOLERANCES["float64", "sgd"],
        )


# Several averages, computed by hand in NumPy


class Outer:
    """An outer optimizer of some weights, from the formulas of the paper.

    Attributes:
      kind: sgd or nesterov.
      rate: Outer learning rate.
      momentum: Outer momentum.
      send: Function that rounds an array to the type in which it is sent.
      anchors: Weights of the last average.
      momenta: Momentum of each weight.
    """

    def __init__(self, kind: str, rate: float, momentum: float, send: Callable):
        self.kind, self.rate, self.momentum, self.send = kind, rate, momentum, send
        self.anchors: list[np.ndarray] = []
        self.momenta: list[np.ndarray] = []

    def start(self, weights: Sequence[np.ndarray]) -> None:
        self.anchors = [weight.copy() for weight in weights]
        self.momenta = [np.zeros_like(weight) for weight in weights]

    def average(self, index: int, replicas: Sequence[Replica]) -> None:
        """Replaces one weight of every replica by the outer optimizer's result."""
        anchor, count = self.anchors[index], len(replicas)
        parts = [
            self.send((anchor - replica.weights[index]) / count) for replica in replicas
        ]
        # `send` rounds to the type that is sent; the parts are added in this type too.
        gradient = sum(parts[1:], parts[0]).astype(np.float64)
        momentum = self.momentum * self.momenta[index] + gradient
        step = gradient + self.momentum * momentum
        self.momenta[index] = momentum
        self.anchors[index] = anchor - self.rate * (
            step if self.kind == "nesterov" else momentum
        )
        for replica in replicas:
            replica.weights[index] = self.anchors[index]


def by_hand(
    assembly: TrainingParts, outer: Outer, due: Sequence[int]
) -> tuple[list[float], Replica]:
    """Returns the mean loss of each step, and the mean of the replicas at the end.

    Args:
      assembly: Parts of the run, with the initial weights.
      outer: Outer optimizer.
      due: Step at which each weight is averaged, modulo `EVERY`.
    """
    initial = [weight.numpy() for weight in assembly.model.weights]
    num_replicas = assembly.strategy.num_replicas
    replicas = [
        Replica(list(initial), [np.zeros_like(weight) for weight in initial])
        for _ in range(num_replicas)
    ]
    outer.start(initial)
    losses = []
    batches = iter(assembly.batches(0).dataset(0, 1))
    for step in range(1, NUM_STEPS + 1):
        indices = next(batches).indices.numpy()
        total = 0.0
        for replica, part in zip(replicas, divided(indices, num_replicas), strict=True):
            weight = num_replicas * len(part) / len(indices)
            total += replica.step(FEATURES[part], weight)
        losses.append(total / len(indices))
        for index, offset in enumerate(due):
            if step % EVERY == offset:
                outer.average(index, replicas)
    return losses, Replica(
        mean_over([replica.weights for replica in replicas]),
        mean_over([replica.momenta for replica in replicas]),
    )


def as_is(values: np.ndarray) -> np.ndarray:
    return values


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    return values.astype(tf.bfloat16.as_numpy_dtype)


SGD: dict[str, Any] = {
    "outer_optimizer": "sgd",
    "outer_learning_rate": 0.5,
    "outer_momentum": 0.25,
}
NESTEROV: dict[str, Any] = {"outer_optimizer": "nesterov"}
FRAGMENTS = {**NESTEROV, "outer_fragments": 2}
# The first of two fragments has the kernel, which is the larger variable.
TOGETHER, APART = (0, 0), (2, 0)


BFLOAT16 = {**NESTEROV, "outer_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("replicas", "settings", "outer", "due"),
    [
        # The last two cases have its momentum in fragments, and of all weights at once.
        further(3, NESTEROV, Outer("nesterov", 0.7, 0.9, as_is), TOGETHER),
        (2, SGD, Outer("sgd", 0.5, 0.25, as_is), TOGETHER),
        (3, FRAGMENTS, Outer("nesterov", 0.7, 0.9, as_is), APART),
        # Two replicas, because the order in which three are added is not fixed.
        (2, BFLOAT16, Outer("nesterov", 0.7, 0.9, as_bfloat16), TOGETHER),
    ],
    ids=["nesterov", "sgd", "fragments", "bfloat16"],
)
def test_it_is_what_was_computed_by_hand(
    replicas: int, settings: Mapping[str, Any], outer: Outer, due: Sequence[int]
) -> None:
    """17 steps have four averages of all weights; the model then shows the mean."""
    assembly = linear(replicas, **settings)
    losses, mean = by_hand(assembly, outer, due)
    sums = train(assembly, NUM_STEPS)
    np.testing.assert_allclose(sums["loss"] / sums["examples"], losses, rtol=1e-11)
    # An average makes the weights about ten times smaller, so their difference from the
    # anchor loses a digit.
    for got, want in zip(assembly.model.weights, mean.weights, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-14)
    # Each replica keeps its own optimizer state, as without an outer optimizer.
    momenta = [v for v in assembly.optimizer.variables if "momentum" in v.path]
    for got, want in zip(momenta, mean.momenta, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-14)


def test_every_setting_makes_a_difference() -> None:
    """The tests by hand could not fail without these differences."""
    assembly = linear(2)
    cases = {
        "mean": (Outer("sgd", 1.0, 0.0, as_is), TOGETHER),
        "rate": (Outer("sgd", 0.7, 0.0, as_is), TOGETHER),
        "momentum": (Outer("sgd", 0.7, 0.9, as_is), TOGETHER),
        "nesterov": (Outer("nesterov", 0.7, 0.9, as_is), TOGETHER),
        "bfloat16": (Outer("nesterov", 0.7, 0.9, as_bfloat16), TOGETHER),
        "fragments": (Outer("nesterov", 0.7, 0.9, as_is), APART),
    }
    last = {name: by_hand(assembly, *case)[0][-1] for name, case in cases.items()}
    for one, other in itertools.combinations(last, 2):
        assert last[one] != pytest.approx(last[other], rel=1e-7), (one, other)


def test_without_one_nothing_is_kept_of_the_last_average() -> None:
    """The default sends weights, and a checkpoint has the replicas' copies alone."""
    assembly = linear(2)
    # Each replica has kernel, bias, their momenta and the learning rate, and there is
    # the step.
    plain = len(assembly.strategy.replica_state())
    communication = assembly.strategy.communication(0)
    assert communication is not None
    assert communication.algorithm == (
        f"weights to and from the first replica, every {EVERY} steps"
    )
    anchors = linear(2, **{**SGD, "outer_momentum": 0.0}).strategy.replica_state()
    assert len(anchors) == plain + 2
    with_momenta = linear(2, **NESTEROV).strategy.replica_state()
    assert len(with_momenta) == plain + 4


@pytest.mark.parametrize("dtype", ["as_is", "bfloat16", "float16"])
def test_bytes_are_those_that_are_sent(dtype: str) -> None:
    """Changes of weights are sent in `outer_dtype`, layer state in its own type."""
    settings: dict[str, Any] = {**FRAGMENTS, "outer_dtype": dtype}
    assembly = assemble_custom(
        STRATEGY,
        2,
        lambda: [keras.layers.BatchNormalization(), keras.layers.Dense(3)],
        FEATURES,
        global_batch_size=8,
        dtype="float64",
        sync_every_steps=EVERY,
        **settings,
    )
    size = 8 if dtype == "as_is" else 2
    # The trained variables are kernel, bias, scale and shift; mean and variance are
    # layer state.
    trained, state = size * (6 * 3 + 3 + 6 + 6), 8 * (6 + 6)
    communication = assembly.strategy.communication(0)
    assert communication is not None
    sent = communication.bytes_per_step_per_replica
    assert sent == round(2 * (trained + state) / EVERY)
    assert dtype in communication.algorithm
    (most,) = re.findall(
        r"in 2 fragments of at most (\d+) bytes", communication.algorithm
    )
    # The largest variable has less than half of the bytes, so the two fragments differ
    # by less than its bytes.
    assert (trained + state) / 2 <= int(most) <= (trained + state) / 2 + size * 18 / 2


# Fragments


@pytest.mark.parametrize(("every", "count"), [(1, 1), (7, 3), (8, 8), (50, 8)])
def test_fragments_are_due_at_different_steps(every: int, count: int) -> None:
    steps = due_steps(every, count)
    assert len(set(steps)) == count
    assert steps[-1] == 0
    ordered = [*sorted(steps), every]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    assert max(gaps) - min(gaps) <= 1
    assert all(0 <= step < every for step in steps)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_variable_is_in_one_fragment(count: int) -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 20)
    variables = [tf.Variable(tf.zeros([size])) for size in sizes]
    parts = fragments(variables, count, lambda v: int(v.shape[0]))
    assert len(parts) == count
    found = [variable.ref() for part in parts for variable in part]
    assert sorted(map(hash, found)) == sorted(hash(v.ref()) for v in variables)
    totals = [sum(int(v.shape[0]) for v in part) for part in parts]
    # Otherwise a part could give its smallest variable to another and remain the
    # larger.
    assert max(totals) - min(totals) <= max(sizes)


# Runs that are resumed, between two averages or by others

OWN = (
    f"--strategy={STRATEGY}",
    "--sync_every_steps=7",
    "--outer_optimizer=nesterov",
    "--outer_dtype=bfloat16",
    "--outer_fragments=3",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Trains for 20 steps; tests copy the folder and do not change it."""
    path = tmp_path_factory.mktemp("outer") / "run"
    length = ("--train_steps=20", "--checkpoint_every_steps=10")
    assert main([*FLAGS, *OWN, *length, *RARELY, f"--run_dir={path}"]) == 0
    return path


def test_a_run_goes_on_exactly_and_looking_at_it_changes_nothing(
    undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Fragments are averaged at steps 2, 4, 7, 9, 11, 14, so momentum is in use."""
    looks = ("--eval_every_steps=3", "--steps_per_loop=2", "--checkpoint_every_steps=4")
    run = tmp_path / "run"
    processes.copy_up_to(10, undisturbed, run)
    result = continued(run, *OWN, *looks)
    expected = processes.result_of(undisturbed)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["steps"] == 20


@pytest.mark.parametrize(
    "others",
    [
        further((f"--strategy={STRATEGY}", "--num_replicas=3", "--sync_every_steps=7")),
        further((*OWN, "--num_replicas=3")),
        ("--strategy=one_device",),
    ],
    ids=["mean", "three", "one_device"],
)
def test_strategies_take_each_others_checkpoints(
    undisturbed: pathlib.Path, tmp_path: pathlib.Path, others: Sequence[str]
) -> None:
    """Each continues from the mean: its anchors are the mean, its momenta are zero."""
    run = tmp_path / "run"
    processes.copy_up_to(10, undisturbed, run)
    shared = [flag for flag in FLAGS if not flag.startswith("--num_replicas")]
    # No fragment is due in step 13, so its checkpoint still has the anchors of step 12.
    for steps, flags in ((12, others), (13, (*OWN, "--num_replicas=2"))):
        length = ("--resume=auto", f"--train_steps={steps}", f"--run_dir={run}")
        assert main([*shared, *flags, *RARELY, *length]) == 0
    weights = {
        name: value
        for name, value in variables_of(run, 12, "variables").items()
        if name.startswith("optimizer/_trainable_variables")
    }
    assert len(weights) == 4
    kept = list(variables_of(run, 13, "replicas").values())
    for name, weight in weights.items():
        same = [value for value in kept if np.array_equal(value, weight)]
        assert len(same) == 1, f"the anchor of {name}"
        zeros = [v for v in kept if v.shape == weight.shape and not v.any()]
        assert len(zeros) == 1, f"the momentum of {name}"


def test_evaluation_is_of_the_mean(
    undisturbed: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(["main", "--mode=evaluate", f"--run_dir={undisturbed}"]) == 0
    final: dict[str, Any] = processes.result_of(undisturbed)["final"]
    assert f"loss {final['eval_loss']:.4f}" in capfd.readouterr().out
