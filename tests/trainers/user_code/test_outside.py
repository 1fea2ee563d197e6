"""Layers, models and variables that a module has made belong to the run's strategy."""

import importlib
import json
import pathlib

import keras
import numpy as np
import pytest

from tests.conformance.harness import Layout, Subject, small_config
from tests.markers import further
from tests.processes import result_of, run, train
from tests.trainers.user_code import outside
from trainers.run_dir.checkpoints import weights_sha256

FACTORIES = (
    "unbuilt_layer",
    "built_layer",
    "layer_of_a_subclass",
    "variable",
    "whole",
    "backbone",
    "subclassed",
    "not_called",
    "once",
)
# In `make test` under a strategy.
SHOWN = ("whole", "not_called")
LAYOUT = Layout(num_examples=48, global_batch_size=12)


def subject(strategy: str, name: str, num_replicas: int) -> Subject:
    """Returns a subject of the module `outside`, imported anew."""
    keras.utils.set_random_seed(7)
    importlib.reload(outside)
    return Subject.of(
        small_config(
            strategy=strategy,
            num_replicas=num_replicas,
            model=f"tests.trainers.user_code.outside:{name}",
            dataset="tests.trainers.user_code.factories:arrays",
            dtype="float64" if name == "once" else "float32",
            # Which differ with the number of replicas, as they are to.
            disable_layers=("dropout", "batch_normalization"),
        )
    )


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, "mirrored") for name in SHOWN),
        *(further(name, "mirrored") for name in FACTORIES if name not in SHOWN),
        *(further(name, "tower") for name in FACTORIES),
    ],
)
def test_they_are_trained_as_on_one_device(name: str, strategy: str) -> None:
    several = subject(strategy, name, 2)
    initial = [weight.numpy() for weight in several.assembly.model.weights]
    found = several.run(LAYOUT, num_steps=4)
    expected = subject("one_device", name, 1).run(LAYOUT, num_steps=4)
    # "The same training": 1e-5 in float32.
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    for one, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.linalg.norm(other))
    assert any((a != b).any() for a, b in zip(initial, found.variables, strict=True))


def test_they_keep_the_weights_that_the_module_gave_them() -> None:
    several = subject("mirrored", "variable", 2)
    (scale,) = [v for v in several.assembly.model.weights if v is outside.SCALE]
    np.testing.assert_array_equal(scale.numpy(), [1, 2, 3, 4, 5])
    assert len(scale.value.values) == 2


def flags_of(name: str) -> tuple[str, ...]:
    return (
        f"--model=tests.trainers.user_code.outside:{name}",
        *("--dataset=tests.trainers.user_code.factories:arrays", "--export=keras"),
        *("--train_steps=4", "--global_batch_size=8", "--seed=3"),
    )


@pytest.fixture(scope="module", params=["whole", further("built_layer")])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, pathlib.Path]:
    """Returns the name of a factory, and the folder of a run of its model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder, *flags_of(request.param), "--strategy=mirrored")
    return request.param, folder


def test_the_seed_of_the_run_decides_what_a_module_makes(
    exported: tuple[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    name, folder = exported
    again = train(tmp_path / "again", *flags_of(name), "--strategy=tower")
    first = result_of(folder)
    assert first["initial_weights_sha256"] == again["initial_weights_sha256"]


def test_an_export_has_what_was_trained(exported: tuple[str, pathlib.Path]) -> None:
    """It is a separate model, although its layers belong to the run's model."""
    _, folder = exported
    model = keras.saving.load_model(folder / "export" / "last.keras")
    result = result_of(folder)
    assert weights_sha256(model) == result["weights_sha256"]
    assert result["weights_sha256"] != result["initial_weights_sha256"]


def test_a_layer_of_a_subclass_cannot_be_exported(tmp_path: pathlib.Path) -> None:
    words = (*flags_of("layer_of_a_subclass"), f"--run_dir={tmp_path / 'run'}")
    done = run(*words, "--strategy=mirrored")
    assert done.returncode == 2, done.stderr
    assert "make all layers inside of the function" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategies",
    [
        ("--strategies=parameter_server", "--update=sync"),
        further(("--strategies=multi_worker_mirrored,parameter_server",)),
    ],
    ids=["servers", "all"],
)
def test_they_are_trained_by_several_processes(
    strategies: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    done = run(
        *("--mode=verify", "--train_steps=5", "--global_batch_size=12"),
        *strategies,
        "--jit_compile=off",
        *("--model=tests.trainers.user_code.outside:backbone", "--dtype=float64"),
        # Without it the masks of its dropout depend on the number of replicas.
        *(
            "--dataset=tests.trainers.user_code.factories:arrays",
            "--set=model.replayable_random_numbers=true",
        ),
        f"--run_dir={tmp_path / 'verified'}",
    )
    text = (tmp_path / "verified" / "verify.json").read_text(encoding="utf-8")
    assert done.returncode == 0, (done.stdout, json.loads(text))
