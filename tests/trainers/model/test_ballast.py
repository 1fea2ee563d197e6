"""--set=model.ballast=true: more bytes to send, and nothing else."""

import json
import pathlib
from typing import Any

import keras
import pytest
import tensorflow as tf

from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from tests.conformance.harness import small_config
from tests.trainers.user_code.factories import Nested
from trainers.cli import flags
from trainers.loop.builder import assemble, create_strategy
from trainers.main import main
from trainers.model.ballast import LEAST_BYTES, MOST_BYTES, add_ballast

FEATURES = (5,)


def functional(width: int = 3) -> keras.Model:
    features = keras.Input(FEATURES)
    return keras.Model(features, keras.layers.Dense(width)(features))


def sequential() -> keras.Model:
    return keras.Sequential([keras.Input(FEATURES), keras.layers.Dense(3)])


def subclassed() -> keras.Model:
    model = Nested()
    model(keras.KerasTensor((None, *FEATURES)))
    return model


def ballast_of(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.trainable_variables if v.name.startswith("ballast")]


@pytest.mark.parametrize("make", [functional, sequential, subclassed])
def test_any_kind_of_model_takes_it_and_computes_the_same(make: Any) -> None:
    model = make()
    features = tf.ones((2, *FEATURES))
    before = model(features).numpy()
    layers = list(model.layers)
    add_ballast(model, num_weights=2)
    assert [4 * v.value.shape.num_elements() for v in ballast_of(model)] == [
        LEAST_BYTES // 2,
        LEAST_BYTES // 2,
    ]
    assert (model(features).numpy() == before).all()
    assert model.layers == layers


def test_a_large_model_gets_as_much_as_it_has() -> None:
    model = functional(width=100_000)
    add_ballast(model, num_weights=1)
    (ballast,) = ballast_of(model)
    assert ballast.value.shape.num_elements() == (5 + 1) * 100_000
    assert MOST_BYTES > 4 * (5 + 1) * 100_000


# Each weight has a gradient, as the next test shows, and gradients are sent.
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["mirrored", "tower"])
def test_it_is_sent_and_the_training_is_the_same(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    found = []
    for extra in ([], ["--set=model.ballast=true"]):
        folder = tmp_path / f"run-{len(extra)}"
        words = [
            *(
                f"--strategy={strategy}",
                "--model=tests.trainers.user_code.factories:Nested",
            ),
            *(
                "--dataset=tests.trainers.user_code.factories:train_and_eval",
                "--train_steps=5",
            ),
            *("--loss=sparse_categorical_crossentropy", "--global_batch_size=8"),
            f"--run_dir={folder}",
        ]
        assert main(["main", *words, *extra]) == 0
        found.append(json.loads((folder / "result.json").read_text("utf-8")))
    own, heavy = (each["communication"]["bytes_per_step_per_replica"] for each in found)
    # Weights or gradients there, and sums or gradients back.
    assert heavy == own + 2 * LEAST_BYTES
    own_loss, heavy_loss = (each["final"]["eval_loss"] for each in found)
    # The loss has the penalty of the padding weights: the gradient times their sum.
    # Five updates of Adam move each weight by at most five times the rate of 0.001.
    most_penalty = 1e-6 * (LEAST_BYTES / 4) * 5 * 0.001
    assert 0 <= own_loss - heavy_loss <= most_penalty * (1 + 1e-6)


def test_each_ballast_weight_has_a_gradient() -> None:
    config = small_config(strategy="tower", model="mlp", num_replicas=2, ballast=True)
    assembly = assemble(config, create_strategy(config, Cluster()))
    before = [v.numpy().copy() for v in ballast_of(assembly.model)]
    batches = assembly.strategy.distribute(assembly.batches(0))
    assembly.loop_function(batches, 1)
    for variable, old in zip(ballast_of(assembly.model), before, strict=True):
        assert (variable.numpy() != old).all()


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--strategy=model_parallel", "send no gradients to each other"),
        ("--export=keras", "cannot be loaded again"),
        ("--mode=predict", "adds it to some of its runs by itself"),
    ],
)
def test_it_is_refused_where_it_shows_nothing(flag: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        flags.parse(["main", "--set=model.ballast=true", flag])
