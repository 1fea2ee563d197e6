"""Tests of replicas that train by themselves and average their weights at times."""

import dataclasses
import itertools
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest

from strategies import registry
from tests import processes
from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Subject,
    small_config,
    subjects,
)
from tests.conformance.test_same_training import (
    TOLERANCES,
    assert_same_training,
    of_one_device,
    spec_of,
)
from tests.markers import chosen, further
from trainers.loop.parts import TrainingParts
from trainers.main import main

AVERAGING = [
    (name, replicas)
    for name, replicas in subjects()
    if "parameters" in registry.traits(name).averages
]
STRATEGY, _ = AVERAGING[0]

# An average after every step of SGD on each copy


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("mlp", "float64"),
        further("mlp", "float32"),
        further("convnet", "float64"),
    ],
)
@pytest.mark.parametrize(("strategy", "replicas"), chosen(AVERAGING, [(STRATEGY, 3)]))
def test_averaged_after_every_step_of_sgd_it_is_one_device(
    strategy: str, replicas: int, model: str, dtype: str
) -> None:
    """The mean of w - r g_i over replicas is w - r times the mean gradient."""
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        model=model,
        dtype=dtype,
        sync_every_steps=1,
        **UPDATES["sgd"],
    )
    subject = Subject.of(config, spec_of(model, dtype))
    for name, layout in LAYOUTS.items():
        for seed in (0, 1):
            assert_same_training(
                subject.run(layout, seed=seed),
                of_one_device(model, "sgd", dtype, name, seed),
                TOLERANCES[dtype, "sgd"],
            )


# The training below, computed by hand with an average every few steps, differs as well.
# test_coverage.py has the strategy among those that train differently.
@pytest.mark.exhaustive
def test_averaged_less_often_it_is_another_training() -> None:
    """The test above could not fail without this difference, which a trait declares."""
    config = small_config(
        strategy=STRATEGY,
        num_replicas=2,
        model="mlp",
        dtype="float64",
        sync_every_steps=2,
        **UPDATES["sgd"],
    )
    outcome = Subject.of(config).run(LAYOUTS["even"])
    losses = of_one_device("mlp", "sgd", "float64", "even").losses
    assert outcome.losses[0] == pytest.approx(losses[0], rel=1e-12)
    assert outcome.losses[1] != pytest.approx(losses[1], rel=1e-6)
    assert not config.strategy.traits.matches_one_device


# Several averages, computed by hand in NumPy: with momentum, clipping, and batches of
# which some replicas get no example

# 26 = 3 x 8 + 2: with three and four replicas some get no example of the last batch of
# an epoch.
FEATURES = np.random.default_rng(0).normal(1, 2, (26, 6))
NUM_STEPS = 10
EVERY = 4
# Keras rounds rates and momenta to float32, in which these two are exact.
RATE, MOMENTUM = 0.0625, 0.75
CLIP = 0.5


def linear(replicas: int, **settings: Any) -> TrainingParts:
    """Assembles the training that `by_hand` computes, with more settings."""
    return assemble_custom(
        STRATEGY,
        replicas,
        lambda: [keras.layers.Dense(3)],
        FEATURES,
        global_batch_size=8,
        optimizer="momentum",
        learning_rate=RATE,
        momentum=MOMENTUM,
        clip_global_norm=CLIP,
        dtype="float64",
        sync_every_steps=EVERY,
        **settings,
    )


@dataclasses.dataclass
class Replica:
    """A linear model with its momentum, as a replica has it."""

    weights: list[np.ndarray]
    momenta: list[np.ndarray]

    def step(self, rows: np.ndarray, weight: float) -> float:
        """Trains on some rows, and returns the sum of their losses before the update.

        Args:
          rows: Features of the replica's examples [n, inputs].
          weight: Factor of the gradient, which makes up for an uneven share.
        """
        kernel, bias = self.weights
        outputs = rows @ kernel + bias
        slope = 2 / outputs.shape[1] * outputs * weight / max(len(rows), 1)
        gradients = [rows.T @ slope, slope.sum(axis=0)]
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        scale = min(1, CLIP / norm) if norm else 1
        for index, gradient in enumerate(gradients):
            momentum = MOMENTUM * self.momenta[index] - RATE * scale * gradient
            self.momenta[index] = momentum
            self.weights[index] = self.weights[index] + momentum
        return float(np.mean(outputs**2, axis=1).sum())


def mean_over(copies: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.mean(parts, axis=0) for parts in zip(*copies, strict=True)]


def divided(indices: np.ndarray, replicas: int) -> list[np.ndarray]:
    """Divides indices as evenly as possible; the first parts are the largest."""
    cuts = [-(-replica * len(indices) // replicas) for replica in range(replicas + 1)]
    return [indices[start:stop] for start, stop in itertools.pairwise(cuts)]


def by_hand(
    assembly: TrainingParts, average_momenta: bool
) -> tuple[list[float], Replica]:
    """Returns the mean loss of each step, and the mean of the replicas at the end."""
    initial = [weight.numpy() for weight in assembly.model.weights]
    num_replicas = assembly.strategy.num_replicas
    replicas = [
        Replica(list(initial), [np.zeros_like(weight) for weight in initial])
        for _ in range(num_replicas)
    ]
    losses = []
    batches = iter(assembly.batches(0).dataset(0, 1))
    for step in range(1, NUM_STEPS + 1):
        indices = next(batches).indices.numpy()
        parts = divided(indices, num_replicas)
        total = 0.0
        for replica, part in zip(replicas, parts, strict=True):
            weight = num_replicas * len(part) / len(indices)
            total += replica.step(FEATURES[part], weight)
        losses.append(total / len(indices))
        if step % EVERY == 0:
            weights = mean_over([replica.weights for replica in replicas])
            momenta = mean_over([replica.momenta for replica in replicas])
            for replica in replicas:
                replica.weights = list(weights)
                if average_momenta:
                    replica.momenta = list(momenta)
    return losses, Replica(
        mean_over([replica.weights for replica in replicas]),
        mean_over([replica.momenta for replica in replicas]),
    )


@pytest.mark.parametrize(
    ("replicas", "average_momenta"),
    chosen(
        itertools.product((2, 3, 4), (False, True)),
        # Of three replicas one gets no example of the last batch.
        [(3, False), (2, True)],
    ),
)
def test_it_is_what_was_computed_by_hand(replicas: int, average_momenta: bool) -> None:
    """Ten steps end between two averages, where the model shows the mean."""
    assembly = linear(replicas, average_optimizer_state=average_momenta)
    losses, mean = by_hand(assembly, average_momenta)
    sums = train(assembly, NUM_STEPS)
    np.testing.assert_allclose(sums["loss"] / sums["examples"], losses, rtol=1e-12)
    for got, want in zip(assembly.model.weights, mean.weights, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-11)
    momenta = [v for v in assembly.optimizer.variables if "momentum" in v.path]
    for got, want in zip(momenta, mean.momenta, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-11)
    # Every replica evaluates that mean.
    evaluated = assembly.evaluation.run().means["loss"]
    outputs = FEATURES @ mean.weights[0] + mean.weights[1]
    assert evaluated == pytest.approx(np.mean(outputs**2), rel=1e-11)


def test_whether_momenta_are_averaged_makes_a_difference() -> None:
    assembly = linear(2)
    apart, together = by_hand(assembly, False)[0], by_hand(assembly, True)[0]
    assert apart[:EVERY] == together[:EVERY]
    assert apart[-1] != pytest.approx(together[-1], rel=1e-6)


@pytest.mark.parametrize("outer_optimizer", [further("none"), "nesterov"])
@pytest.mark.parametrize("replicas", [2, further(4)])
def test_layers_keep_state_of_their_own_replica_which_is_averaged(
    replicas: int, outer_optimizer: str
) -> None:
    """A replica without an example computes on the last example of the batch."""
    assembly = assemble_custom(
        STRATEGY,
        replicas,
        lambda: [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(2)],
        FEATURES,
        global_batch_size=8,
        dtype="float64",
        sync_every_steps=EVERY,
        outer_optimizer=outer_optimizer,
    )
    means = np.zeros([replicas, 6])
    variances = np.ones([replicas, 6])
    batches = iter(assembly.batches(0).dataset(0, 1))
    for step in range(1, NUM_STEPS + 1):
        indices = next(batches).indices.numpy()
        for replica, part in enumerate(divided(indices, replicas)):
            rows = FEATURES[part if len(part) else indices[-1:]]
            means[replica] = (means[replica] + rows.mean(axis=0)) / 2
            variances[replica] = (variances[replica] + rows.var(axis=0)) / 2
        if step % EVERY == 0:
            means[:], variances[:] = means.mean(axis=0), variances.mean(axis=0)
    train(assembly, NUM_STEPS)
    layer = assembly.model.layers[0]
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), means.mean(axis=0), rtol=1e-12
    )
    np.testing.assert_allclose(
        layer.moving_variance.numpy(), variances.mean(axis=0), rtol=1e-12
    )


# Runs that are resumed, between two averages or by others

FLAGS = (
    "main",
    *("--num_replicas=2", "--model=mlp", "--hidden_units=8", "--dropout=0.3"),
    *("--summary_every_steps=5", "--set=report.histogram_every_steps=none"),
)
OWN = (f"--strategy={STRATEGY}", "--sync_every_steps=7")
# An evaluation writes its figures and a picture of them.
RARELY = ("--eval_every_steps=none",)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Trains for ten steps; tests copy the folder and do not change it."""
    path = tmp_path_factory.mktemp("interrupted") / "run"
    assert main([*FLAGS, *OWN, "--train_steps=10", f"--run_dir={path}"]) == 0
    return path


def continued(run: pathlib.Path, *flags: str) -> dict[str, Any]:
    resume = ("--resume=auto", "--train_steps=20", f"--run_dir={run}")
    assert main([*FLAGS, *flags, *resume]) == 0
    return processes.result_of(run)


# test_outer_optimizer.py has the same with the state of an outer optimizer.
@pytest.mark.exhaustive
def test_a_run_goes_on_exactly_and_looking_at_it_changes_nothing(
    interrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    looks = ("--eval_every_steps=3", "--steps_per_loop=2", "--checkpoint_every_steps=4")
    undisturbed = tmp_path / "undisturbed"
    flags = (*OWN, "--train_steps=20", *looks, f"--run_dir={undisturbed}")
    assert main([*FLAGS, *flags]) == 0
    expected = processes.result_of(undisturbed)
    run = shutil.copytree(interrupted, tmp_path / "run")
    result = continued(run, *OWN)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["steps"] == 20
    # 64 x 8 + 8 + 8 x 10 + 10 weights are sent and received, once in seven steps.
    assert result["communication"]["bytes_per_step_per_replica"] == round(
        2 * 4 * (64 * 8 + 8 + 8 * 10 + 10) / 7
    )
    assert result["traits"]["matches_one_device"] is False


# test_outer_optimizer.py has the same with the state of an outer optimizer.
@pytest.mark.exhaustive
def test_strategies_take_each_others_checkpoints(tmp_path: pathlib.Path) -> None:
    """All parts are one training, because weights are averaged after each SGD step.

    Another strategy, or another number of replicas, continues from the mean; none
    continues from the separate states of the replicas.
    """
    shared = [
        *("main", "--model=mlp", "--hidden_units=8", "--summary_every_steps=5"),
        *(
            "--optimizer=sgd",
            "--learning_rate=0.1",
            "--set=report.histogram_every_steps=none",
        ),
        # A compilation takes longer than these steps.
        *("--jit_compile=off", *RARELY),
    ]
    at_once, run = tmp_path / "at_once", tmp_path / "run"
    every = ("--checkpoint_every_steps=5", "--set=report.keep_checkpoints=4")
    whole = ("--train_steps=20", f"--run_dir={at_once}")
    assert main([*shared, *every, *whole]) == 0
    processes.copy_up_to(5, at_once, run)
    averaging = (f"--strategy={STRATEGY}", "--sync_every_steps=1")
    for steps, flags in (
        (10, (*averaging, "--num_replicas=2")),
        (15, (*averaging, "--num_replicas=3")),
        (20, ("--strategy=one_device",)),
    ):
        length = (f"--train_steps={steps}", "--resume=auto", f"--run_dir={run}")
        assert main([*shared, *flags, *length]) == 0
        assert processes.result_of(run)["steps"] == steps
    # This is the bound of float32 and SGD.
    assert processes.train_losses_of(run) == pytest.approx(
        processes.train_losses_of(at_once), rel=1e-6
    )


@pytest.mark.exhaustive
def test_evaluation_is_of_the_mean(
    interrupted: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(["main", "--mode=evaluate", f"--run_dir={interrupted}"]) == 0
    final = processes.result_of(interrupted)["final"]
    assert f"loss {final['eval_loss']:.4f}" in capfd.readouterr().out
