"""--mode=verify where the training itself amplifies rounding."""

import dataclasses
import json
import pathlib

import jsonschema
import keras
import numpy as np
import pytest

from tests import processes
from tests.trainers.experiments.verify.mutated_projects import Fault, plant, verify
from tests.trainers.experiments.verify.test_diagnosis import STEP, executed
from trainers.experiments.verify.rounding import judge_with_rounding
from trainers.experiments.verify.verdict import Verdict
from trainers.model.layer_switches import perturb_weights

SCHEMA = json.loads((processes.ROOT / "docs/verify.schema.json").read_text("utf-8"))

# Softmax cancels the bias of the keys: its gradient is rounding alone, and Adam makes
# updates of it that are as large as others. 50 examples fall unevenly to 3 towers.
PROGRAM = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(400, 6, 8))
y = x[:, 0, 0] * x[:, 1, 1]
inputs = keras.Input((6, 8))
attended = keras.layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
outputs = keras.layers.Dense(1)(keras.layers.Flatten()(attended))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01, epsilon=1e-6), "mse")
model.fit(x, y, batch_size=50, epochs=2)
"""
FLAGS = ("--strategies=tower", "--update=sync", "--num_replicas=3")


def _write(folder: pathlib.Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return f"--script={path}"


@pytest.mark.slow
def test_what_the_last_bit_changes_as_much_is_equivalent(
    tmp_path: pathlib.Path,
) -> None:
    done, found = verify(tmp_path, _write(tmp_path, PROGRAM), *FLAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    jsonschema.validate(found, SCHEMA)
    tower = next(s for s in found["strategies"] if s["name"] == "tower")
    assert tower["verdict"] == "equivalent"
    assert tower["first_beyond_tolerance"] is None
    explained = tower["explained_by_rounding"]
    assert explained["variable"] == "attention/key/bias"
    assert explained["relative"] > explained["tolerance"]
    assert "by rounding alone" in done.stdout
    # The reference is repeated once for all strategies.
    assert done.stdout.count("keras-perturbed") == 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_fault_in_such_a_training_is_found(tmp_path: pathlib.Path) -> None:
    plant(
        tmp_path,
        Fault(
            file="strategies/tower.py",
            right="part = take_shard(batch, index, self.num_replicas)",
            wrong="""part = take_shard(batch, index, self.num_replicas)
                    part = part._replace(global_size=part.num_rows * self.num_replicas)
""",
        ),
    )
    done, found = verify(tmp_path, _write(tmp_path, PROGRAM), *FLAGS)
    tower = next(s for s in found["strategies"] if s["name"] == "tower")
    assert tower["verdict"] == "different", done.stdout + done.stderr
    assert tower["explained_by_rounding"] is None


# test_diagnosis.py has recordings of other examples.
@pytest.mark.slow
@pytest.mark.exhaustive
def test_data_without_a_seed_are_the_cause(tmp_path: pathlib.Path) -> None:
    text = PROGRAM.replace("default_rng(0)", "default_rng()")
    done, found = verify(
        tmp_path, _write(tmp_path, text), "--strategies=one_device", "--train_steps=2"
    )
    assert done.returncode == 4, done.stdout + done.stderr
    (one_device,) = found["strategies"]
    assert "give the generators of its data a seed" in one_device["cause"]["likely"]
    assert not one_device["cause"]["tests"]


def test_a_changed_last_bit_may_end_the_training_earlier(
    tmp_path: pathlib.Path,
) -> None:
    """A callback that waits for a loss to improve may do so."""
    reference = executed(tmp_path / "one_device", STEP, num_steps=3)
    other = dataclasses.replace(STEP, weights={"kernel": np.array([1.0, 2.0 + 1e-9])})
    subject = executed(tmp_path / "mirrored", other, num_steps=3)
    perturbed = executed(tmp_path / "perturbed", other, num_steps=2)
    found = judge_with_rounding(subject, reference, lambda *_: perturbed)
    assert found.verdict is Verdict.EQUIVALENT


def test_every_weight_changes_by_its_last_bit() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(50)])
    before = [weight.numpy() for weight in model.trainable_variables]
    perturb_weights(model)
    kernel, bias = (weight.numpy() for weight in model.trainable_variables)
    ratio = np.abs(kernel - before[0]) / np.spacing(np.abs(before[0]))
    # Below a power of two numbers are twice as dense.
    assert set(np.unique(ratio)) <= {0.5, 1.0}
    assert 0 < np.count_nonzero(kernel > before[0]) < kernel.size
    np.testing.assert_array_equal(bias, before[1])
