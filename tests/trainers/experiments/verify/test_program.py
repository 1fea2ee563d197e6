"""--mode=verify and --mode=compare of a program, with Keras's own fit as the first."""

import json
import pathlib

import jsonschema
import pytest

from tests import processes
from tests.keras_corpus import path_of
from tests.markers import further
from tests.trainers.experiments.verify.mutated_projects import Fault, plant, verify
from trainers.run_dir.step_recording import Recording

pytestmark = pytest.mark.slow

SCHEMA = json.loads((processes.ROOT / "docs/verify.schema.json").read_text("utf-8"))

# Random layers, two optimizers, several calls of fit, streams, several losses.
VERIFIED = (
    *("classifier_with_callbacks", "generative_adversarial_network"),
    *("variational_autoencoder", "fine_tuning", "stream", "tagging_with_masks"),
    *("several_inputs_and_outputs", "regression", "distillation", "sample_weights"),
    *("imbalanced_classes", "text_transformer", "added_losses", "autoencoder"),
    *("half_precision", "moving_average_of_weights", "own_callbacks", "py_dataset"),
    *("segmentation", "gpt2", "gpt2_weighted_tokens", "data_frame"),
    *("grain_pipeline", "torch_loader", "transfer_learning"),
    *("losses_of_batches", "low_rank_adapters", "noise_of_tensorflow"),
)


# A model that draws numbers of Keras, and numbers of TensorFlow in its steps. Its first
# layer is frozen in the first of two calls of `fit`.
_DRAWS = """
import keras, numpy as np, tensorflow as tf

class Noise(keras.layers.Layer):
    def call(self, inputs, training=False):
        noise = tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)
        return inputs + noise if training else inputs

rows = np.random.default_rng(0).random((32, 3))
frozen = keras.layers.Dense(3, trainable=False)
layers = [frozen, keras.layers.Dropout(0.5), Noise(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((3,)), *layers])
for trainable in False, True:
    frozen.trainable = trainable
    model.compile("adam", "mse")
    model.fit(rows, rows[:, 0], batch_size=8, epochs=2)
"""


def test_a_program_that_draws_and_thaws_is_the_same(
    tmp_path: pathlib.Path,
) -> None:
    program = tmp_path / "draws.py"
    program.write_text(_DRAWS)
    _check_trains_as_by_fit(tmp_path, program, num_fits=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", VERIFIED)
def test_a_program_trains_as_by_fit(tmp_path: pathlib.Path, program: str) -> None:
    path = path_of(program)
    _check_trains_as_by_fit(tmp_path, path, num_fits=path.read_text().count(".fit("))


def _check_trains_as_by_fit(
    tmp_path: pathlib.Path, program: pathlib.Path, num_fits: int
) -> None:
    done, found = verify(
        tmp_path,
        *(f"--script={program}", "--strategies=mirrored"),
        *("--num_replicas=3", "--train_steps=8"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jsonschema.validate(found, SCHEMA)
    assert (found["reference"], found["keras"]) == ("keras", None)
    verdicts = {entry["name"]: entry["verdict"] for entry in found["strategies"]}
    assert set(verdicts) == {"one_device", "mirrored"}
    assert set(verdicts.values()) <= {"identical", "equivalent"}
    assert found["steps"] == 8 * num_fits
    assert "from Keras's own fit" in done.stdout


_UNEVEN = """
import keras, numpy as np, tensorflow as tf

rows = np.random.default_rng(0).random((20, 3))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.data.Dataset.from_tensor_slices((rows, rows[:, 0])).batch(8), epochs=2)
"""


@pytest.mark.parametrize(
    ("program", "fault", "one_device"),
    [
        (
            "",
            Fault(
                file="trainers/model/train_step.py",
                right='share = sums["loss"] / tf.cast(batch.global_size, dtype)',
                wrong='share = 2 * sums["loss"] / tf.cast(batch.global_size, dtype)',
            ),
            "different",
        ),
        further(
            "variational_autoencoder",
            Fault(
                file="trainers/user_code/own_step/train_step.py",
                right="return batch.num_rows / batch.global_size",
                wrong="return tf.constant(0.5, tf.float64)",
            ),
            "different",
        ),
        further(
            "generative_adversarial_network",
            Fault(
                file="strategies/inner_loop/updates_in_turn.py",
                right="former.append([tf.identity(v) for v in",
                wrong="former.append([tf.zeros_like(v) for v in",
            ),
            "different",
        ),
    ],
)
def test_a_fault_that_all_strategies_share_is_found(
    tmp_path: pathlib.Path, program: str, fault: Fault, one_device: str
) -> None:
    """Comparing strategies with each other cannot show it.

    Without a name the program is the one with a smaller last batch.
    """
    plant(tmp_path, fault)
    path = path_of(program) if program else tmp_path / "uneven.py"
    if not program:
        path.write_text(_UNEVEN)
    done, found = verify(
        tmp_path,
        *(f"--script={path}", "--strategies=one_device"),
        *("--train_steps=3", "--dtype=float64"),
    )
    (entry,) = found["strategies"]
    assert entry["verdict"] == one_device, done.stdout + done.stderr
    assert done.returncode == (4 if one_device == "different" else 0)


# The first fault is planted in a training with a smaller last batch, too.
@pytest.mark.exhaustive
def test_fit_counts_the_examples_of_a_smaller_batch(tmp_path: pathlib.Path) -> None:
    """A difference is put down to lost examples if two runs count them otherwise."""
    program = tmp_path / "uneven.py"
    program.write_text(_UNEVEN)
    done, _ = verify(
        tmp_path,
        *(f"--script={program}", "--strategies=one_device", "--train_steps=6"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for arm in ("keras", "one_device"):
        recording = Recording(tmp_path / "verified" / "runs" / arm)
        examples = [recording.read(step).examples for step in range(1, 7)]
        assert examples == [8, 8, 4, 8, 8, 4], arm


_COUNTS = """
import keras, numpy as np

class Counted(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), trainable=False, name="total")

    def call(self, inputs):
        self.total.assign_add(keras.ops.sum(inputs))
        return inputs

rows = np.random.default_rng(0).random((16, 3))
model = keras.Sequential([keras.Input((3,)), Counted(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(rows, rows[:, 0], batch_size=8)
"""


# test_diagnosis.py has the log of such a run.
@pytest.mark.exhaustive
def test_a_warning_of_a_strategy_alone_is_the_likely_cause(
    tmp_path: pathlib.Path,
) -> None:
    """The run has looked at the model, and knows more than its recording shows."""
    program = tmp_path / "counts.py"
    program.write_text(_COUNTS)
    done, found = verify(
        tmp_path, f"--script={program}", "--strategies=mirrored", "--train_steps=2"
    )
    one_device, mirrored = found["strategies"]
    assert one_device["verdict"] == "identical", done.stdout + done.stderr
    assert mirrored["verdict"] == "different"
    assert mirrored["cause"]["likely"].startswith("the state sequential/counted/total")
    log = tmp_path / "verified" / "runs" / "mirrored" / "logs" / "chief-0.log"
    assert "warning: the state sequential/counted/total" in log.read_text()


_FAILING = """
import keras, numpy as np

rows = np.random.default_rng(0).random((16, 3))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(rows, rows[:, 0], batch_size=8, epochs=5)
print(history.history["loss"][4])
"""


def test_steps_are_compared_although_the_program_fails_after_them(
    tmp_path: pathlib.Path,
) -> None:
    """The verification has shortened the training that the program counts on."""
    program = tmp_path / "failing.py"
    program.write_text(_FAILING)
    done, found = verify(
        tmp_path, f"--script={program}", "--strategies=one_device", "--train_steps=4"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["steps"] == 4
    assert [entry["verdict"] for entry in found["strategies"]] == ["identical"]
    (note,) = (line for line in done.stdout.splitlines() if line.startswith("note "))
    assert "after its steps" in note
    assert "line 8" in note


_STEEP = """
import keras, numpy as np

sizes = np.repeat(10.0 ** np.arange(4, -6, -2.0), 8)
rows = np.random.default_rng(0).random((40, 3)) * sizes[:, None]
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
model.compile(keras.optimizers.SGD(1e-9), "mse", steps_per_execution=2)
model.fit(
    rows, rows @ [[1.0], [2], [3]], batch_size=8, epochs=2, shuffle=False,
    validation_data=(rows, rows[:, :1]),
)
"""


# The program above has executions of one step, whose losses are those of the strategy.
@pytest.mark.exhaustive
def test_a_small_loss_after_large_ones_has_all_its_digits(
    tmp_path: pathlib.Path,
) -> None:
    """`fit` adds them up, calls back after two steps, and validates in between."""
    program = tmp_path / "steep.py"
    program.write_text(_STEEP)
    done, found = verify(
        tmp_path,
        *(f"--script={program}", "--strategies=one_device", "--train_steps=10"),
        "--dtype=float64",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (one_device,) = found["strategies"]
    # Two ways to sum 8 examples differ by a few units of the last place.
    assert one_device["largest_relative_difference"]["loss"]["relative"] < 1e-15
    losses = [
        step.loss / step.examples
        for step in map(
            Recording(tmp_path / "verified" / "runs" / "keras").read, range(1, 11)
        )
    ]
    assert max(losses) > 1e16 * min(losses)


_TWO_FITS = """
import keras, numpy as np

rows = np.random.default_rng(0).random((16, 3))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
for rate in (0.1, 0.01):
    model.compile(keras.optimizers.SGD(rate), "mse", jit_compile=False)
    model.fit(rows, rows[:, 0], batch_size=8, validation_data=(rows, rows[:, 0]))
"""


@pytest.mark.exhaustive
def test_a_comparison_begins_with_fit(tmp_path: pathlib.Path) -> None:
    """The second `fit` of the program begins with weights that are not equal."""
    program = tmp_path / "two_fits.py"
    program.write_text(_TWO_FITS)
    done = processes.run(
        *("--mode=compare", "--strategies=mirrored", "--seeds=1", "--train_steps=6"),
        f"--script={program}",
        f"--run_dir={tmp_path / 'compared'}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    keras, mirrored = content["arms"]
    assert (keras["name"], mirrored["name"]) == ("keras", "mirrored")
    for arm in (keras, mirrored):
        assert arm["means"]["eval_loss"] > 0
        assert arm["means"]["examples_per_second"] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--optimizer=adam",), ("--optimizer", "Keras's own fit")),
        (("--clip_global_norm=1",), ("--clip_global_norm", "Keras's own fit")),
    ],
)
def test_settings_that_fit_does_not_have_are_refused(
    tmp_path: pathlib.Path, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done, found = verify(
        tmp_path,
        *(f"--script={path_of('regression')}", "--strategies=one_device", *flags),
    )
    assert done.returncode == 2
    assert not found
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "verified").exists()
