"""Checks that the updates of a whole run are Keras's, with the rates of the formulas.

Strategies share the optimizer, so a comparison among them shows nothing about it. These
tests compare a run of the program with `fit` of a plain Keras model.
"""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from tests import processes
from tests.markers import chosen
from tests.updates import factories
from tests.updates.cases import CASES, GLOBAL_BATCH_SIZE, STEPS, Case, Rates
from trainers.cli.flags import parse
from trainers.config.config import Config
from trainers.config.groups import field_of
from trainers.config.optimizer import OptimizerConfig
from trainers.main import main

POINTS = range(5, STEPS + 1, 5)

FLAGS = (
    *("--dtype=float64", f"--global_batch_size={GLOBAL_BATCH_SIZE}"),
    f"--checkpoint_every_steps={POINTS.step}",
    *(f"--set=report.keep_checkpoints={len(POINTS)}", "--summary_every_steps=1"),
    *("--set=report.histogram_every_steps=none", *processes.NO_EVALUATION),
    # A case below asks for XLA, whose compilation takes longer than these steps.
    "--jit_compile=off",
)
MODELS = {
    "quantities": "tests.updates.factories:perceptron",
    "categories": "tests.updates.factories:embedding",
    "mlp": "mlp",
}

# Bounds of the distance of float64 weights, relative to their distance from the initial
# ones. Rates have single precision, and so have both betas of Keras's Adam: 1 - beta_2
# is 1e-5 too large. tests/trainers/model/optimizers/test_adam.py compares Adam with the
# formula.
TOLERANCE = 2e-7
TOLERANCE_OF_ADAM = 2e-5
# Rates begin at the peak, and single precision has a relative error of 6e-8.
RATE_TOLERANCE = 2e-7


def arguments(case: Case) -> list[str]:
    data = "categories" if case.kind == "categories" else "quantities"
    strategy = [] if "--strategy=tower" in case.flags else ["--strategy=one_device"]
    epochs = any(flag.startswith("--epochs") for flag in case.flags)
    length = [] if epochs else [f"--train_steps={STEPS}"]
    names = [
        f"--model={MODELS[case.kind]}",
        f"--dataset=tests.updates.factories:{data}",
    ]
    # Models of the tests have fixed widths.
    names += [] if ":" in MODELS[case.kind] else ["--hidden_units=6"]
    return ["main", *FLAGS, *names, *strategy, *length, *case.flags]


def weights_of_checkpoint(run: pathlib.Path, step: int) -> list[np.ndarray]:
    """Returns the trainable variables, as TensorFlow reads them."""
    reader = tf.train.load_checkpoint(run / f"checkpoints/step-{step:08d}/variables")
    key = "optimizer/_trainable_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"
    count = sum(
        name.startswith("optimizer/_trainable_variables/")
        for name in reader.get_variable_to_shape_map()
    )
    return [reader.get_tensor(key.format(index)) for index in range(count)]


@dataclasses.dataclass(frozen=True)
class Spec:
    """The shapes and numbers that a model of the catalogue needs."""

    input_shape: tuple[int, ...] = (5,)
    num_classes: int = factories.NUM_CLASSES
    num_categories: int | None = None


def keras_model(kind: str) -> keras.Model:
    """Returns a model with the initial weights of the run."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    if kind == "mlp":
        settings = Config().replace(hidden_units=(6,)).model
        return models.load("mlp").build(Spec(), settings)
    if kind == "categories":
        return factories.embedding_as_a_product()
    return factories.perceptron()


def weights_of_fit(case: Case) -> list[list[np.ndarray]]:
    """Returns the weights before the first step and after each step."""
    model = keras_model(case.kind)
    (features, labels), _ = (
        factories.categories() if case.kind == "categories" else factories.quantities()
    )
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=case.label_smoothing
    )
    model.compile(
        case.optimizer(Rates(case.rate)),
        lambda labels, logits: case.loss_factor * loss(labels, logits),
    )
    weights = [model.get_weights()]
    model.fit(
        features,
        keras.utils.to_categorical(labels, factories.NUM_CLASSES),
        batch_size=GLOBAL_BATCH_SIZE,
        epochs=STEPS,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: weights.append(
                    model.get_weights()
                )
            )
        ],
    )
    return weights


# Of each family of optimizers a case with many settings, a schedule of each kind, and
# rows of an embedding. The further cases combine settings that these have, or leave
# them out.
CHOSEN = (
    "momentum of 0.5 with decay, step",
    "adam with decay, clipped, warm-up, cosine",
    "adamw, scaling by the root, warm-up, step",
    "smoothed labels, in micro-batches",
    "adagrad of an embedding",
)


@pytest.mark.parametrize("name", chosen(CASES, CHOSEN))
def test_a_run_updates_as_keras_does(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]
    assert main([*arguments(case), f"--run_dir={tmp_path / 'run'}"]) == 0
    rows = processes.metrics_of(tmp_path / "run")
    rates = {r["step"]: r["learning_rate"] for r in rows if "learning_rate" in r}
    expected_rates = [case.rate(step) for step in range(STEPS)]
    assert sorted(rates) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(
        [rates[step] for step in sorted(rates)],
        expected_rates,
        rtol=0,
        atol=RATE_TOLERANCE * max(expected_rates),
    )
    expected = weights_of_fit(case)
    is_adam = any("optimizer=adam" in flag for flag in case.flags)
    tolerance = TOLERANCE_OF_ADAM if is_adam else TOLERANCE
    for step in POINTS:
        found = weights_of_checkpoint(tmp_path / "run", step)
        for index, (got, want, before) in enumerate(
            zip(found, expected[step], expected[0], strict=True)
        ):
            moved = np.linalg.norm(want - before)
            assert moved > 1e-3, "the weights have hardly moved, which shows nothing"
            distance = np.linalg.norm(got - want)
            assert distance <= tolerance * moved, f"step {step}, variable {index}"


# Settings of other groups that change how an update uses gradients.
OTHERS = ("gradient_reduction", "gradient_accumulation_steps")


def test_every_setting_of_an_update_is_in_a_case() -> None:
    """A case has each choice, or a value other than the default if there are none."""
    names = [*(field.name for field in dataclasses.fields(OptimizerConfig)), *OTHERS]
    settings = [parse(arguments(case)).to_dict() for case in CASES.values()]
    for name in names:
        _, field = field_of(name)
        used = {each[name] for each in settings}
        choices = field.metadata["choices"]
        missing = set(choices) - used if choices else not used - {field.default}
        assert not missing, f"--{name}: {missing or used} is in no case of cases.py"
