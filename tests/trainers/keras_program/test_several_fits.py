"""Numbers that a run of a program with several calls of `fit` reports."""

import pathlib
import shutil

import pytest

from tests import processes
from tests.markers import further
from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under

# The second `fit` begins with a new optimizer, and the third one keeps it.
_PROGRAM = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4))
y = x.sum(axis=1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])


def compile():
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.01, 0.001])
    model.compile(keras.optimizers.SGD(rate), "mse")


compile()
model.fit(x, y, batch_size=20)
compile()
model.fit(x, y, batch_size=16)
model.fit(x, y, batch_size=16)
"""
# Keras asks a schedule with the number of updates before; its bounds are inclusive.
_RATES = [0.1] * 4 + [0.1] * 4 + [0.01] * 3 + [0.001]


@pytest.mark.parametrize("flags", [(), further(("--set=model.keras_fit=true",))])
def test_rates_and_examples_are_of_all_fits(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM)
    run = tmp_path / "run"
    words = (f"--script={path}", f"--run_dir={run}", "--strategy=one_device", *flags)
    done = processes.run(*words, "--summary_every_steps=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = processes.result_of(run)
    assert (result["steps"], result["examples_seen"]) == (12, 3 * 64)
    rows = [row for row in processes.metrics_of(run) if "learning_rate" in row]
    assert [row["learning_rate"] for row in rows] == pytest.approx(_RATES)


_STREAM = """
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(10, 4))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(2):
    model.fit(tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(4), epochs=2)
model.fit(x, x.sum(axis=1), batch_size=4)
"""


def test_examples_of_streams_are_those_of_their_batches(tmp_path: pathlib.Path) -> None:
    """Batches have 4, 4 and 2 rows; a run that continues trains the last fit alone."""
    path = tmp_path / "train.py"
    path.write_text(_STREAM)
    run = tmp_path / "run"
    words = (f"--script={path}", f"--run_dir={run}", "--strategy=one_device")
    done = processes.run(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    _assert_fifty(run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "phase-3" / "step-00000015")
    done = processes.run(*words, "--resume=auto", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    _assert_fifty(run)


def _assert_fifty(run: pathlib.Path) -> None:
    result = processes.result_of(run)
    counts = [result[name] for name in ("steps", "attempted_steps", "examples_seen")]
    assert counts == [15, 15, 50]


def test_staleness_is_that_of_all_fits(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM)
    run = tmp_path / "run"
    words = (f"--script={path}", f"--run_dir={run}", "--strategy=tower")
    done = processes.run(*words, "--update=async", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = processes.result_of(run)
    assert sum(result["staleness"]["histogram"].values()) == 12
    assert result["continued"] is False


_TWICE = """
class Twice(keras.Sequential):
    def train_step(self, data):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data[0]) - data[1]))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


model = Twice([keras.layers.Input((4,)), keras.layers.Dense(1)])
compile()
model.fit(x, y, batch_size=16)
"""


def test_rates_are_of_all_updates_of_a_step(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    begin, _, _ = _PROGRAM.rpartition("compile()\nmodel.fit(x, y, batch_size=20)")
    path.write_text(f"import tensorflow as tf\n{begin}{_TWICE}")
    run = tmp_path / "run"
    words = (f"--script={path}", f"--run_dir={run}", "--strategy=one_device")
    done = processes.run(*words, "--summary_every_steps=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [row for row in processes.metrics_of(run) if "learning_rate" in row]
    # That of the first of two updates: 0, 2, 4 and 6 were before.
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01])


# The test before has a schedule in each fit, and test_given_settings.py the flags.
@pytest.mark.exhaustive
def test_a_flags_schedule_is_of_each_fit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM)
    run = tmp_path / "run"
    schedule = ("--optimizer=sgd", "--learning_rate_schedule=step", "--learning_rate=1")
    words = (f"--script={path}", f"--run_dir={run}", "--strategy=one_device", *schedule)
    done = processes.run(*words, "--summary_every_steps=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [row for row in processes.metrics_of(run) if "learning_rate" in row]
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx([1, 1, 0.1, 0.01] * 3)


_FOLDS = """
import logging

import keras
import numpy as np
import tensorflow as tf

x, y = np.ones((4, 2)), np.ones(4)
for fold in range(5):
    layers = [keras.layers.Dense(1), keras.layers.Lambda(lambda x: x)]
    model = keras.Sequential([keras.layers.Input((2,)), *layers])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=4, verbose=0, validation_data=(x, y))
tf.get_logger().warning("warned")
logging.basicConfig(format="of the program: %(message)s")
logging.warning("all folds")
"""


# TensorFlow warns of the fifth trace only, which no shorter program has.
@pytest.mark.exhaustive
def test_models_in_turn_leave_logs_as_they_are(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_FOLDS)
    words = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*words, "--strategy=one_device", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # TensorFlow warns of the fifth trace of a function.
    assert "retracing" not in done.stderr
    assert done.stderr.count("warned") == 1
    assert "of the program: all folds" in done.stderr


def assert_trains_as_by_fit(models: str, strategy: str, tmp_path: pathlib.Path) -> None:
    """Asserts that models train under a strategy on `_PROGRAM`'s data as by `fit`."""
    text = _PROGRAM.partition("model")[0] + models
    plain, run = tmp_path / "plain", tmp_path / "run"
    for folder in (plain, run):
        folder.mkdir()
    assert_as_by_fit(under(run, text, f"--strategy={strategy}"), by_fit(plain, text))


_OPTIMIZERS_OF_OPTIMIZERS = """
import tensorflow as tf
from keras import optimizers

class Ahead(optimizers.Optimizer):
    \"\"\"Follows an optimizer with a second, slower copy of the weights.\"\"\"

    def __init__(self, inner):
        super().__init__(learning_rate=0.0)
        self.inner_optimizer = inner

    def build(self, variables):
        super().build(variables)
        self.inner_optimizer.build(variables)
        self.slow = self.add_optimizer_variables(variables, "slow")

    def apply(self, grads, trainable_variables=None):
        self.inner_optimizer.apply(grads, trainable_variables)
        self._iterations.assign_add(1)
        for variable, slow in zip(trainable_variables, self.slow):
            slow.assign(0.5 * (slow + variable))

class Changing(optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(0.5 * g, v) for g, v in grads_and_vars])

    def apply(self, grads, trainable_variables=None):
        super().apply([g + 0.01 for g in grads], trainable_variables)

class Own(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

map_of = optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.Adam()})
both = optimizers.MultiOptimizer(map_of)
each = optimizers.MultiOptimizer(lambda variable: optimizers.SGD(0.1))
ahead = Ahead(optimizers.SGD(0.1, momentum=0.9))
for kind, optimizer in (
    (keras.Sequential, both),
    (Own, each),
    (keras.Sequential, ahead),
    (keras.Sequential, Changing(0.1)),
    (Own, Changing(0.1)),
):
    keras.utils.set_random_seed(0)
    model = kind([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=16)
    model.train_on_batch(x, y)
    model.fit(x, y, batch_size=16)
    assert optimizer.iterations == 9
"""


def test_optimizers_of_others_and_of_the_users_classes_update(
    tmp_path: pathlib.Path,
) -> None:
    """Each sums gradients over replicas by itself, unless it is prevented.

    What a class does to gradients, it does to the sum over replicas, and once.
    """
    assert_trains_as_by_fit(_OPTIMIZERS_OF_OPTIMIZERS, "mirrored", tmp_path)


_SCHEDULE_LATER = """
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
model.fit(x, y, batch_size=16)
schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
model.optimizer.learning_rate = schedule
model.compile(model.optimizer, "mse")
model.fit(x, y, batch_size=16)
class OfVariable(keras.optimizers.schedules.LearningRateSchedule):
    factor = keras.Variable(1.0, trainable=False)

    def __call__(self, step):
        self.factor.assign(0.9 * self.factor)
        few = keras.ops.minimum(step, keras.ops.cast(4, step.dtype))
        return 0.1 * self.factor / (1 + keras.ops.cast(few, "float32"))

    def get_config(self):
        return {}

optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.learning_rate = OfVariable()
model.compile(optimizer, "mse")
model.fit(x, y, batch_size=16)
"""


def test_a_schedule_takes_the_place_of_a_rate(tmp_path: pathlib.Path) -> None:
    """The variable of the rate is then none of the optimizer any more.

    Towers update weights once, so that a schedule may assign a variable.
    """
    assert_trains_as_by_fit(_SCHEDULE_LATER, "tower", tmp_path)


_FREEZING = """
keras.utils.set_random_seed(0)
base = keras.layers.Dense(3)
model = keras.Sequential([keras.layers.Input((4,)), base, keras.layers.Dense(1)])
model.compile("adam", "mse")
for is_trained in (True, False):
    base.trainable = is_trained
    model.fit(x, y, batch_size=16)
model.compile("adam", "mse")
for is_trained in (False, True):
    base.trainable = is_trained
    model.fit(x, y, batch_size=16)
assert base.trainable and base.kernel.trainable
"""


def test_layers_are_frozen_by_the_next_compile(tmp_path: pathlib.Path) -> None:
    assert_trains_as_by_fit(_FREEZING, "one_device", tmp_path)


_WITHOUT_MODE = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.5)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, **kwargs):
        return self.dense(self.dropout(self.norm(inputs), **kwargs))

class OfOneArgument(Net):
    def call(self, inputs):
        return super().call(inputs)

class OfItsHead(keras.Sequential):
    @property
    def losses(self):
        return [0.1 * keras.ops.sum(keras.ops.square(self.layers[0].kernel))]

    @property
    def trainable_weights(self):
        return self.layers[-1].trainable_weights

keras.utils.set_random_seed(0)
head = OfItsHead([keras.layers.Dense(3), keras.layers.Dense(1)])
for net in (Net(), OfOneArgument(), head):
    net.compile("sgd", "mse")
    net.fit(x, y, batch_size=16, validation_data=(x, y))
"""


def test_a_call_without_an_argument_training_has_no_mode(
    tmp_path: pathlib.Path,
) -> None:
    """Keras neither normalizes by the batch nor drops anything there."""
    assert_trains_as_by_fit(_WITHOUT_MODE, "mirrored", tmp_path)


# As in TensorFlow's tutorial on regression: the first rows make the input of a model.
_CALLED_BEFORE = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(48, 4))


def layers():
    return [keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)]


called, predicted = keras.Sequential(layers()), keras.Sequential(layers())
called(x[:3])
predicted.predict(x[:10], verbose=0)
fixed = keras.Sequential([keras.Input(batch_shape=(7, 4)), *layers()])
for model in (called, predicted, fixed):
    model.compile("sgd", "mse")
    model.fit(x, x.sum(axis=1), batch_size=16)
"""


# Programs of test_same_as_fit.py have models without a size of batches.
@pytest.mark.exhaustive
def test_inputs_may_be_of_other_batches(tmp_path: pathlib.Path) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    for folder in (plain, run):
        folder.mkdir()
    found = under(run, _CALLED_BEFORE, "--strategy=one_device")
    assert_as_by_fit(found, by_fit(plain, _CALLED_BEFORE))


# As in searches of hyperparameters, such as with Optuna.
_PRUNING = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4))
y = x.sum(axis=1)


class Pruned(Exception):
    pass


class Prune(keras.callbacks.Callback):
    def __init__(self, moment):
        super().__init__()
        setattr(self, moment, self.prune)

    def prune(self, *arguments):
        raise Pruned(arguments)


layers = [keras.layers.Dense(1, kernel_initializer="zeros")]
model = keras.Sequential([keras.layers.Input((4,)), *layers])
model.compile(keras.optimizers.Adam(0.1), "mse")
try:
    model.fit(x, y, epochs=3, batch_size=16, callbacks=[Prune("on_epoch_end")])
except Pruned:
    # With the weights and moments that the pruned one has left.
    model.fit(x, y, batch_size=16)
for moment in ("on_epoch_end", "on_train_begin"):
    try:
        model.fit(x, y, callbacks=[Prune(moment)])
    except Pruned:
        pass
model.fit(x, y, batch_size=16)
"""


def test_errors_of_callbacks_are_the_programs_to_catch(tmp_path: pathlib.Path) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    for folder in (plain, run):
        folder.mkdir()
    found = under(run, _PRUNING, "--strategy=one_device")
    assert len(found) == 2
    assert_as_by_fit(found, by_fit(plain, _PRUNING))
    result = processes.result_of(run / "run")
    assert result["status"] == "completed"
    # The pruned ones are trained again, but what later ones have written is kept.
    rows = (run / "run" / "metrics.jsonl").read_bytes()
    assert_as_by_fit(
        under(run, _PRUNING, "--strategy=one_device", "--resume=auto"), found
    )
    assert (run / "run" / "metrics.jsonl").read_bytes() == rows
    assert processes.result_of(run / "run")["final"] == result["final"]


def test_errors_of_callbacks_end_several_workers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PRUNING.replace("except Pruned", "except Exception"))
    workers = ("--strategy=multi_worker_mirrored", "--num_workers=2")
    words = (f"--script={path}", f"--run_dir={tmp_path / 'run'}", *workers)
    done = processes.run(*words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: on_epoch_end of a callback failed (Pruned") == 1
    assert "Under --strategy=multi_worker_mirrored the program cannot" in done.stderr


_PLAIN = """
import json
import os

import keras
import numpy as np
import tensorflow as tf


class Show(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        next(iter(data.take(1)))


class ShowLast(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        next(iter(data.take(1)))


class Widen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[0].enable_lora(1)


class Freeze(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[0].kernel.trainable = False


task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
rows = np.eye(8)
data = tf.data.Dataset.from_tensor_slices((rows, rows)).shuffle(8).batch(4)
model = keras.Sequential([keras.layers.Dense(8)])
model.compile("sgd", "mse")
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # Nothing is read after the last batch of the first call.
        (
            "model.fit(data, callbacks=[ShowLast()])\nmodel.fit(data)",
            "on_train_end of a callback of an earlier fit reads data",
        ),
        further("model.fit(data, callbacks=[Show()])", "reshuffle_each_iteration"),
        further("model.fit(data, epochs=1 + task)", "would train up to step"),
        further("model.fit(data, callbacks=[Widen()])", "adds or removes weights"),
        # The optimizer would make its variables for fewer weights on the chief.
        (
            "model.fit(data, callbacks=[Freeze()])\nmodel.compile()\nmodel.fit(data)",
            "workers have models of other weights (shapes, types, trainable):",
        ),
    ],
)
def test_what_would_differ_between_workers_ends_the_run(
    tmp_path: pathlib.Path, call: str, words: str
) -> None:
    """Each took its rows of another order, or waited for steps of the other one."""
    path = tmp_path / "train.py"
    path.write_text(_PLAIN + call)
    workers = ("--strategy=multi_worker_mirrored", "--num_workers=2")
    done = processes.run(
        f"--script={path}", f"--run_dir={tmp_path / 'run'}", *workers, folder=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


_MODELS_IN_TURN = """
import gc

import keras
import numpy as np
import psutil

x, y = np.zeros((8, 1000)), np.zeros((8, 1))
for _ in range(6):
    keras.utils.clear_session()
    model = keras.Sequential([keras.layers.Dense(2000), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    del model
    gc.collect()
    print("MiB", psutil.Process().memory_info().rss / 2**20)
"""


# Models have to be large for it, and so are their weights and moments.
@pytest.mark.exhaustive
def test_models_in_turn_take_no_more_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_MODELS_IN_TURN)
    words = (f"--script={path}", f"--run_dir={tmp_path / 'run'}", "--strategy=mirrored")
    done = processes.run(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    mib = [
        float(line.split()[1])
        for line in done.stdout.splitlines()
        if line.startswith("MiB")
    ]
    # Weights and moments of Adam on two replicas are 46 MiB for each model. The second
    # takes up to 111 MiB more than the first, and ten took no more than two. If all
    # were kept, the last four would take 184 MiB.
    assert len(mib) == 6
    assert mib[5] - mib[1] < 92


_FIXED_ROWS = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(48, 4))
inputs = keras.Input(batch_shape=(24, 4))
halves = keras.ops.reshape(inputs, (24, 2, 2))
hidden = keras.layers.Flatten()(keras.layers.Dense(3, activation="tanh")(halves))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile("sgd", "mse", metrics=["mae"])
model.fit(x, x.sum(axis=1), batch_size=24, epochs=2, validation_data=(x, x[:, 0]))
"""

_FIXED_ROWS_OF_OWN_STEP = _FIXED_ROWS.replace("keras.Model(", "Own(").replace(
    "import numpy as np\n",
    """import numpy as np
import tensorflow as tf

class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        metrics = self.compute_metrics(x, y, predictions)
        return {**metrics, "loss": loss, "twice": 2 * loss}
""",
)


# A model of the kind is rare, and each look at one takes its rows from one place.
@pytest.mark.exhaustive
@pytest.mark.parametrize("text", [_FIXED_ROWS, _FIXED_ROWS_OF_OWN_STEP])
def test_one_replica_trains_a_model_of_batches_of_one_size(
    text: str, tmp_path: pathlib.Path
) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    for folder in (plain, run):
        folder.mkdir()
    flags = ("--strategy=one_device", "--set=report.histogram_every_steps=1")
    found = under(run, text, *flags)
    assert_as_by_fit(found, by_fit(plain, text))


_ONE_EPOCH_EACH = """
import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    num_batches = 32

    def __getitem__(self, index):
        return x[[index]], y[[index]]


x, y = np.zeros((32, 1)), np.arange(32)
for data in (dict(x=x, y=y, batch_size=1), dict(x=Batches())):
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    orders = []
    for fit in range(3):
        means = []

        def add(batch, logs):
            means.append(logs["loss"])

        seen = keras.callbacks.LambdaCallback(on_train_batch_end=add)
        model.fit(**data, callbacks=[seen], verbose=0)
        # The loss of a batch is its label, and logs have the mean of all so far.
        sums = np.array(means) * np.arange(1, 33)
        orders.append(tuple(np.round(np.diff(sums, prepend=0)).astype(int)))
    assert all(sorted(order) == [*range(32)] for order in orders), orders
    print(len(set(orders)), "orders")
"""


def test_each_fit_has_another_order(tmp_path: pathlib.Path) -> None:
    """A program may call `fit` once for each epoch."""
    path = tmp_path / "train.py"
    path.write_text(_ONE_EPOCH_EACH)
    words = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*words, "--strategy=one_device", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 orders") == 2, done.stdout
