"""Known mistakes of distributed training: verify sees each, and names its cause."""

import dataclasses
import pathlib

import pytest

from tests.markers import chosen
from tests.trainers.experiments.verify.mutated_projects import (
    SMALL,
    Fault,
    plant,
    verify,
)

pytestmark = pytest.mark.slow

NORMALIZED_MODEL = """
import keras

from models.classification import classifier


def build(data, settings):
    features = keras.Input(data.input_shape)
    width = settings.hidden_units[0]
    hidden = keras.layers.Dense(width)(keras.layers.Flatten()(features))
    hidden = keras.layers.BatchNormalization(name="normalize")(hidden)
    hidden = keras.layers.Dense(8)(keras.ops.relu(hidden))
    hidden = keras.layers.BatchNormalization(name="again")(hidden)
    return keras.Model(features, keras.layers.Dense(data.num_classes)(hidden))


SETTINGS = ("hidden_units",)
SPEC = classifier(build)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, the flags that show it, and the finding that verify must report.

    Attributes:
      fault: Planted fault.
      flags: Flags under which it shows.
      step: First step that differs.
      quantity: First quantity that differs.
      words: Words of the reported cause.
      tested: Setting that verify switches off, and the remaining difference.
    """

    fault: Fault
    flags: tuple[str, ...] = ()
    step: int = 1
    quantity: str = "gradients"
    words: str
    tested: dict[str, str] = dataclasses.field(default_factory=dict)


# Synchronous strategies; the others are not comparable.
TOWERS = ("--strategies=tower", "--update=sync")

CASES = {
    "gradients averaged twice": Case(
        fault=Fault(
            file="strategies/tower.py",
            right="return [sum_gradients(parts) for parts in",
            wrong="return [sum_gradients(parts) / len(parts) for parts in",
        ),
        words="gradients are 0.5 times those of one_device: averaged over 2 replicas "
        "once more than they should be",
    ),
    "clip before the sum": Case(
        fault=Fault(
            file="trainers/loop/parts.py",
            right="        return kind(",
            wrong="""        clip = config.optimizer.clip_global_norm

        class Clipped(kind):
            def __call__(self, batch):
                shares = super().__call__(batch)
                if clip is None:
                    return shares
                gradients, _ = tf.clip_by_global_norm(shares.gradients, clip)
                return shares._replace(gradients=gradients)

        return Clipped(""",
        ),
        # Less than the norm of half a batch's gradient, about 0.7.
        flags=("--clip_global_norm=0.1",),
        words="goes away without clipping",
        tested={"clipping": "equivalent"},
    ),
    "one replica's examples dropped": Case(
        fault=Fault(
            file="strategies/tower.py",
            right="for index, device in enumerate(self.devices):",
            wrong="for index, device in enumerate(self.devices[:1]):",
        ),
        quantity="loss",
        words="step 1 counted 32 of 64 examples: some replicas' rows are missing",
    ),
    "one replica's gradients dropped": Case(
        fault=Fault(
            file="strategies/tower.py",
            right="average_gradients([tower.gradients for tower in towers])",
            wrong="average_gradients([tower.gradients for tower in towers[:1]])",
        ),
        words="some are lost, weighted or changed on the way to the sum",
    ),
    "a mean of means on an uneven batch": Case(
        fault=Fault(
            file="strategies/tower.py",
            right="part = take_shard(batch, index, self.num_replicas)",
            wrong="""part = take_shard(batch, index, self.num_replicas)
                    part = part._replace(global_size=part.num_rows * self.num_replicas)
""",
        ),
        # 479 = 1,437 / 3 examples, so that every batch falls into 240 and 239.
        flags=("--global_batch_size=479",),
        words="goes away without uneven batches",
        tested={"uneven batches": "equivalent"},
    ),
    "identical dropout masks": Case(
        fault=Fault(
            file="trainers/model/random_numbers/replayed.py",
            right="return tf.where(is_whole | are_some, of_examples, positions)",
            wrong="return positions",
        ),
        flags=("--dropout=0.5", "--set=model.replayable_random_numbers=true"),
        quantity="loss",
        words="goes away without dropout: the masks are not those of the same examples",
        tested={"dropout": "equivalent"},
    ),
    "another weight under mixed precision": Case(
        fault=Fault(
            file="trainers/model/train_step.py",
            right="gradients = unscaled(gradients, scale)",
            wrong="""gradients = unscaled(gradients, scale)
        if self._model.compute_dtype == "bfloat16":
            factor = tf.cast(1 + batch.replica, gradients[0].dtype)
            gradients = [gradient * factor for gradient in gradients]
""",
        ),
        flags=("--dtype=mixed_bfloat16",),
        words="goes away without mixed precision",
        tested={"mixed precision": "equivalent"},
    ),
    "another weight where XLA compiles": Case(
        fault=Fault(
            file="trainers/model/train_step.py",
            right="arguments = (batch, weights, state, self._scale())",
            wrong="""if self._compiled is not None:
            size = batch.global_size * (1 + batch.replica)
            batch = batch._replace(global_size=size)
        arguments = (batch, weights, state, self._scale())""",
        ),
        flags=("--jit_compile=on",),
        words="goes away without XLA",
        tested={"XLA": "equivalent"},
    ),
    "statistics of the first replica": Case(
        fault=Fault(
            file="trainers/model/layer_state.py",
            right="return value * tf.cast(weight, value.dtype)",
            wrong="return value * tf.cast(tf.equal(replica, 0), value.dtype)",
        ),
        flags=("--model=normalized",),
        quantity="loss",
        words="as when only the first replica's are kept",
        tested={"batch normalization": "equivalent"},
    ),
}


# Verify finds other causes by switching a setting off as well, or in the recordings,
# which test_diagnosis.py makes up.
@pytest.mark.parametrize("name", chosen(CASES, ["a mean of means on an uneven batch"]))
def test_a_fault_is_seen_and_its_cause_named(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]
    plant(tmp_path, case.fault, normalized=NORMALIZED_MODEL)
    done, found = verify(tmp_path, *TOWERS, *SMALL, *case.flags)
    assert done.returncode == 4, done.stdout + done.stderr
    (entry,) = found["strategies"]
    assert entry["verdict"] == "different"
    first = entry["first_beyond_tolerance"]
    assert (first["step"], first["quantity"]) == (case.step, case.quantity)
    assert case.words in entry["cause"]["likely"]
    tested = {test["without"]: test["outcome"] for test in entry["cause"]["tests"]}
    assert tested == case.tested
    assert f"tower: likely cause: {entry['cause']['likely']}" in done.stdout


@pytest.mark.exhaustive
def test_normalization_of_a_replicas_own_rows_is_told_from_a_fault(
    tmp_path: pathlib.Path,
) -> None:
    plant(tmp_path, None, normalized=NORMALIZED_MODEL)
    flags = (*SMALL, "--model=normalized")
    done, found = verify(tmp_path, *TOWERS, *flags)
    assert done.returncode == 4, done.stdout + done.stderr
    (entry,) = found["strategies"]
    assert "every replica normalizes its own rows" in entry["cause"]["likely"]
