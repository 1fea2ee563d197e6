"""Checks that every strategy scales a loss of half precision as Keras does."""

import functools
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cluster.test_averaged_parameters import variables_of
from tests.conformance.harness import Layout, Outcome, Subject, small_config
from tests.markers import further
from tests.processes import NO_EVALUATION, copy_up_to, result_of, run, train
from tests.trainers.user_code import half
from trainers.inputs.shuffling import Order
from trainers.model.optimizers.loss_scale import needs_loss_scale

LAYOUT = Layout(num_examples=48, global_batch_size=12)
NUM_STEPS = 6
MODEL = "tests.trainers.user_code.half"
# Spacing of float16's numbers next to 1. Sums of several replicas' gradients are
# rounded by it at other places.
EPSILON = 2.0**-10


@pytest.fixture(autouse=True)
def policy_of_its_own() -> Iterator[None]:
    """Imports the module `half` again, and restores Keras's dtype policy."""
    importlib.reload(half)
    yield
    keras.config.set_dtype_policy("float32")


def subject(strategy: str, num_replicas: int, name: str, **settings: Any) -> Subject:
    return Subject.of(
        small_config(
            strategy=strategy,
            num_replicas=num_replicas,
            model=f"{MODEL}:{name}",
            dataset=f"{MODEL}:data",
            optimizer="sgd",
            learning_rate=half.RATE,
            **settings,
        )
    )


# Of `keras.optimizers.LossScaleOptimizer`.
START = 2.0**15


def scale_of(trained: Subject) -> float:
    scale, _ = trained.assembly.loss_scale_variables()
    return float(scale.numpy())


def by_keras(
    model: keras.Model, trained: Subject, initial: list[np.ndarray]
) -> list[float]:
    """Returns the losses of Keras's own training on the same batches.

    As in this project, a batch whose gradients overflowed is repeated.
    """
    inner = keras.optimizers.SGD(half.RATE)
    model.compile(keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    model.set_weights(initial)
    order = Order(num_examples=48, global_batch_size=12, seed=1)
    source = trained.assembly.data.train
    losses = []
    for step in range(NUM_STEPS):
        indices, _, _ = order.indices(tf.constant(step, tf.int64), 0, 1)
        batch = source.read(source.tensors(), indices)
        before = int(model.optimizer.iterations.numpy())
        while int(model.optimizer.iterations.numpy()) == before:
            loss = model.train_on_batch(*batch)
        losses.append(float(loss))
    return losses


@functools.cache
def of_one_device() -> Outcome:
    return subject("one_device", 1, "by_policy").run(LAYOUT, num_steps=NUM_STEPS)


# The test of `needs_loss_scale` below has layers with a policy as well.
@pytest.mark.parametrize("name", ["by_policy", further("by_layer")])
def test_it_is_what_keras_does(name: str) -> None:
    """All bits are equal: the same operations, and a scale that is a power of two."""
    trained = subject("one_device", 1, name)
    initial = [weight.numpy() for weight in trained.assembly.model.weights]
    found = trained.run(LAYOUT, num_steps=NUM_STEPS)
    model = getattr(half, name)()
    losses = by_keras(model, trained, initial)
    for one, other in zip(found.variables, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # Keras returns the loss as float32.
    np.testing.assert_allclose(found.losses, losses, rtol=2.0**-23)
    assert scale_of(trained) == float(model.optimizer.dynamic_scale.numpy())
    assert scale_of(trained) < START, "nothing has overflowed"
    assert (found.applied_steps, found.step) == (NUM_STEPS, NUM_STEPS)


@pytest.mark.parametrize(
    ("strategy", "num_replicas", "settings"),
    [
        further("tower", 2, {}),
        further("mirrored", 2, {}),
        further("model_parallel", 1, {}),
        ("tower", 2, {"average": "losses"}),
        # Other tests below train under mirrored.
        further("mirrored", 3, {"gradient_accumulation_steps": 2}),
        further("one_device", 1, {"jit_compile": "on"}),
    ],
    ids=str,
)
def test_it_is_the_same_training(
    strategy: str, num_replicas: int, settings: dict[str, Any]
) -> None:
    trained = subject(strategy, num_replicas, "by_policy", **settings)
    found = trained.run(LAYOUT, num_steps=NUM_STEPS)
    expected = of_one_device()
    # Each of the six updates rounds once.
    bound = NUM_STEPS * EPSILON
    np.testing.assert_allclose(found.losses, expected.losses, rtol=bound)
    for one, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one, other, atol=bound * np.linalg.norm(other))
    assert scale_of(trained) < START
    assert (found.applied_steps, found.step) == (NUM_STEPS, NUM_STEPS)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [("parameter_averaging", {}), ("tower", {"update": "async"})],
    ids=str,
)
def test_replicas_that_do_not_wait_learn_too(
    strategy: str, settings: dict[str, Any]
) -> None:
    trained = subject(strategy, 2, "by_policy", **settings)
    assembly = trained.assembly
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 30)
    losses = results.sums["loss"] / results.sums["examples"]
    assert results.applied_steps == len(losses) == int(assembly.step.numpy()) == 30
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < losses[:10].mean()
    # The scale falls by at most a half a step, and the first steps overflow.
    assert 1 < scale_of(trained) < START


def test_the_scale_grows_after_finite_steps() -> None:
    trained = subject("mirrored", 2, "growing")
    trained.run(LAYOUT, num_steps=NUM_STEPS)
    assert scale_of(trained) == 4 * 2.0 ** (NUM_STEPS // 3)


@pytest.mark.parametrize(
    ("name", "scaled"),
    [("by_policy", True), ("by_layer", True), ("bfloat16", False)],
)
def test_only_float16_needs_it(name: str, scaled: bool) -> None:
    assert needs_loss_scale(getattr(half, name)()) == scaled


def test_a_layer_in_double_precision_is_trained() -> None:
    trained = subject("mirrored", 2, "double_layer")
    initial = [weight.numpy() for weight in trained.assembly.model.weights]
    found = trained.run(LAYOUT, num_steps=NUM_STEPS)
    for before, after in zip(initial, found.variables, strict=True):
        assert (before != after).any()
    expected = subject("one_device", 1, "double_layer").run(LAYOUT, num_steps=NUM_STEPS)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)


FLAGS = (
    *(f"--dataset={MODEL}:data", "--optimizer=sgd", f"--learning_rate={half.RATE}"),
    *("--global_batch_size=12", "--train_steps=8", *NO_EVALUATION),
    "--set=report.histogram_every_steps=none",
)


def test_a_resumed_run_has_the_scale_of_before(tmp_path: pathlib.Path) -> None:
    """The model is not compiled: with an optimizer it would keep a second scale."""
    flags = (
        *("--model=mlp", "--hidden_units=8", "--dtype=mixed_float16"),
        *("--train_steps=8", "--checkpoint_every_steps=3", "--strategy=one_device"),
        *("--set=report.histogram_every_steps=none", *NO_EVALUATION),
    )
    whole = train(tmp_path / "whole", *flags)
    copy_up_to(3, tmp_path / "whole", tmp_path / "parts")
    again = train(tmp_path / "parts", *flags, "--resume=auto")
    assert again["weights_sha256"] == whole["weights_sha256"]
    for name in ("whole", "parts"):
        saved = variables_of(tmp_path / name, 8, "variables")
        scale = [v for n, v in sorted(saved.items()) if n.startswith("loss_scale/")]
        # Also the number of finite steps since its last change is that of one run.
        assert scale == [START, 8]


def test_a_gradient_that_no_scale_helps_ends_as_divergence(
    tmp_path: pathlib.Path,
) -> None:
    done = run(
        *(f"--model={MODEL}:hopeless", *FLAGS, "--strategy=one_device"),
        f"--run_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 3, done.stderr
    assert "the gradient of" in done.stderr
    assert result_of(tmp_path / "run")["steps"] == 0


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float32"])
def test_a_flag_that_contradicts_the_module_is_refused(
    tmp_path: pathlib.Path, dtype: str
) -> None:
    done = run(
        *(f"--model={MODEL}:by_policy", *FLAGS, f"--dtype={dtype}"),
        f"--run_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"--dtype={dtype} contradicts mixed_float16" in line
    assert not (tmp_path / "run").exists()


def test_a_policy_set_when_the_module_is_imported_is_kept(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "import keras\n"
        "keras.config.set_dtype_policy('mixed_float16')\n"
        "def model():\n"
        "    made = keras.Sequential([keras.layers.Dense(2)])\n"
        "    made.compile('sgd', 'mse')\n"
        "    assert made.layers[0].compute_dtype == 'float16'\n"
        "    return made\n",
        encoding="utf-8",
    )
    given = ("--model=mine:model", *FLAGS, f"--run_dir={tmp_path / 'run'}")
    done = run(*given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "loss_scale" in metrics


# tests/cluster/test_gradient_compression.py and test_compressed_push.py train in half
# precision with several processes.
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_several_processes_train_the_same(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    """`--mode=verify` compares the processes with one device."""
    done = run(
        *(f"--model={MODEL}:by_policy", *FLAGS, "--dtype=mixed_float16"),
        *("--mode=verify", f"--run_dir={tmp_path / 'verified'}"),
        f"--strategies={strategy}",
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
