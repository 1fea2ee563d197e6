"""`--script`: what becomes of a program around its calls of `fit`."""

import json
import pathlib
import re
import subprocess
import textwrap

import numpy as np
import pytest

from tests import processes
from tests.keras_corpus import NAMES, path_of
from tests.markers import further
from trainers.run_dir.step_recording import Recording

# A model and data that need a second.
_MODEL = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.normal(size=(60, 4))
y = x.sum(axis=1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
_MIRRORED = ("--strategy=mirrored", "--num_replicas=2")
_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")
_SERVERS = ("--strategy=parameter_server", "--num_workers=2", "--num_ps=1")


def _write(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "train.py"
    path.write_text(_MODEL + textwrap.dedent(text))
    return path


def _run(
    folder: pathlib.Path, text: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    path = _write(folder, text)
    words = [f"--script={path}", f"--run_dir={folder / 'run'}", *flags]
    return processes.run(*words, folder=folder)


# test_script.py has the chief of several workers, which alone writes.
@pytest.mark.parametrize("strategy", [_MIRRORED, further(_WORKERS), further(_SERVERS)])
def test_a_program_goes_on_with_the_trained_model(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    done = _run(
        tmp_path,
        """
        import sys
        # Divided by the weights of the whole global batch.
        loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
        model.compile("sgd", loss)
        before = model.evaluate(x, y, verbose=0)
        weights = np.linspace(0.5, 1.5, len(x))
        history = model.fit(x, y, 20, 3, validation_split=0.2, sample_weight=weights)
        after = model.evaluate(x, y, verbose=0)
        print("found", len(history.history["val_loss"]), after < before, sys.argv[1:])
        model.save("trained.keras")
        again = keras.models.load_model("trained.keras").evaluate(x, y, verbose=0)
        print("same", abs(again - after) < 1e-6)
        """,
        *strategy,
        *("--", "--rate=0.1", "a b"),
    )
    assert done.returncode == 0, done.stderr
    assert "found 3 True ['--rate=0.1', 'a b']\n" in done.stdout
    assert "same True\n" in done.stdout
    # Once, by the chief.
    assert done.stdout.count("found 3") == 1
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 9)
    assert (result["attempted_steps"], result["examples_seen"]) == (9, 3 * 48)
    assert result["final"]["eval_loss"] > 0


@pytest.mark.parametrize(
    ("loss", "metric", "words"),
    [
        (
            "ops.sum(error * mask) / ops.sum(mask)",
            "ops.mean(error)",
            "Sequential.compile: the gradient of a batch is neither the mean",
        ),
        further(
            "ops.mean(error)",
            "ops.sqrt(ops.mean(error))",
            "metric of a batch is no mean",
        ),
    ],
)
def test_a_loss_or_metric_of_whole_batches_is_named(
    tmp_path: pathlib.Path, loss: str, metric: str, words: str
) -> None:
    done = _run(
        tmp_path,
        f"""
        from keras import ops

        def loss(y, p):
            error = ops.square(y - p)
            mask = ops.cast(y > 0, "float32")
            return {loss}

        def metric(y, p):
            error = ops.square(y - p)
            return {metric}

        model.compile("sgd", loss, metrics=[metric])
        history = model.fit(x, y, epochs=2, batch_size=20)
        print("found", sorted(history.history))
        """,
        *_MIRRORED,
    )
    assert done.returncode == 0, done.stderr
    assert "found ['loss', 'metric']" in done.stdout
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert words in warning


def test_variables_that_validations_of_fit_would_move_are_named(
    tmp_path: pathlib.Path,
) -> None:
    done = _run(
        tmp_path,
        """
        class Center(keras.layers.Layer):
            def build(self, shape):
                self.mean = self.add_weight(shape[1:], trainable=False, name="mean")

            def call(self, x, training=False):
                if training or self.name != "trained":
                    self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
                return x - self.mean

        class Own(keras.Sequential):
            def test_step(self, data):
                return super().test_step(data)

        for kind, name, held_out in (
            (keras.Sequential, "unused", None),
            (keras.Sequential, "trained", (x, y)),
            (keras.Sequential, "compiled", (x, y)),
            (Own, "own", (x, y)),
        ):
            m = kind([Center(name=name), keras.layers.Dense(1)])
            m.compile("sgd", "mse", metrics=["mae"])
            m.fit(x, y, validation_data=held_out)
        """,
        "--strategy=one_device",
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 2
    assert "compiled/mean'" in warnings[0]
    assert "own/mean'" in warnings[1]


@pytest.mark.parametrize("strategy", [_MIRRORED, further(_WORKERS), further(_SERVERS)])
def test_what_flags_decide_is_left_out_of_a_program(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    """The program is the one of Keras's guide to training with tf.distribute.

    Of its settings of TensorFlow three would raise an error here, and two would forbid
    tf.timestamp.
    """
    text = """
    import os
    import time
    import tensorflow as tf

    os.environ.update(KERAS_BACKEND="jax", CUDA_VISIBLE_DEVICES="1")
    os.environ.update(TF_USE_LEGACY_KERAS="0", TF_DETERMINISTIC_OPS="1")
    tf.compat.v2.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.set_visible_devices([], "GPU")
    (cpu,) = tf.config.list_logical_devices("CPU")
    tf.config.set_logical_device_configuration(
        *tf.config.list_physical_devices("CPU"),
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    keras.config.set_backend("jax")

    def wait(number):
        time.sleep(0.05 * (number == 0))
        return number

    data = tf.data.Dataset.range(4).map(
        lambda number: tf.numpy_function(wait, [number], tf.int64), 4, False
    )
    assert list(data.as_numpy_iterator()) == [0, 1, 2, 3]
    tf.config.experimental.enable_op_determinism()
    for own in (
        tf.distribute.MirroredStrategy(),
        tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]),
        tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU")),
        tf.distribute.MirroredStrategy(tf.config.list_logical_devices("GPU")),
        tf.distribute.OneDeviceStrategy("GPU:0"),
        tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=["GPU:0", "GPU:1"]
        ),
        tf.compat.v2.distribute.experimental.MultiWorkerMirroredStrategy(),
        tf.distribute.experimental.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver()
        ),
    ):
        with own.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        size = 10 * own.num_replicas_in_sync
        print("size", size)
    assert tf.distribute.MultiWorkerMirroredStrategy().cluster_resolver.task_id is None
    # What programs take where they find no TPU.
    with tf.distribute.get_strategy().scope():
        for _ in range(2):
            model.fit(x, y, batch_size=size)

    # What programs evaluate by.
    own = tf.compat.v1.distribute.MirroredStrategy()
    assert isinstance(own, tf.distribute.Strategy)
    batches = own.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensor_slices((x, y)).batch(
            context.get_per_replica_batch_size(20)
        )
    )
    batches = own.experimental_distribute_dataset(batches)
    model.fit(batches)

    def loss_of(inputs, labels):
        predicted = model(inputs)[:, 0]
        if tf.reduce_any(tf.math.is_nan(predicted)):
            predicted = tf.zeros_like(predicted)
        losses = tf.square(predicted - tf.cast(labels, tf.float32))
        return tf.nn.compute_average_loss(losses) + losses, losses

    @tf.function
    def evaluate(batch):
        loss, losses = own.run(loss_of, args=batch)
        loss = own.reduce("MEAN", loss, axis=0) / 2
        return loss, *own.experimental_local_results(own.gather(losses, axis=0))

    losses, each = zip(*map(evaluate, batches))
    expected = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose([np.mean(losses), np.mean(each)], expected, rtol=1e-5)
    (value,) = own.experimental_local_results(
        own.experimental_distribute_values_from_function(lambda context: 3)
    )
    assert value == 3
    many = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
    assert many.run(tf.nn.compute_average_loss, args=([1.0, 3.0],)) == 2
    """
    done = _run(tmp_path, text, *strategy)
    assert done.returncode == 0, done.stderr
    # For any number of replicas of --strategy.
    sizes = [line for line in done.stdout.splitlines() if line.startswith("size")]
    assert sizes == [f"size {n}" for n in (10, 20, 30, 10, 10, 20, 10, 10)]
    assert done.stderr.count("makes a MirroredStrategy") == 3
    assert processes.result_of(tmp_path / "run")["steps"] == 15
    assert done.stderr.count("calls run of a MirroredStrategy") == 1
    settings = [line for line in done.stderr.splitlines() if "tf.config." in line]
    assert len(settings) == 4, done.stderr
    assert all("which has no effect" in line for line in settings)
    assert done.stderr.count("keras.config.set_backend, which has no effect") == 1
    assert "--set=threads.intra_op_threads" in done.stderr
    assert done.stderr.count("run_eagerly=True") == 1
    variables = ("KERAS_BACKEND=jax", "CUDA_VISIBLE_DEVICES=1")
    for words in (*variables, "TF_DETERMINISTIC_OPS=1"):
        assert done.stderr.count(f"{words} of os.environ has no effect") == 1
    assert "TF_USE_LEGACY_KERAS" not in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("loss", "last"),
    [("circle", "UnitNormalization()"), ("tversky", "Dense(1, 'sigmoid')")],
)
def test_a_loss_of_keras_that_is_of_whole_batches_is_named(
    tmp_path: pathlib.Path, loss: str, last: str
) -> None:
    # The first 20 examples have one label, beside which circle is zero.
    text = f"""
    labels = np.repeat([0, 1, 2], 20)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.{last}])
    model.compile("sgd", "{loss}")
    model.fit(x, labels, batch_size=20)
    """
    done = _run(tmp_path, text, *_MIRRORED)
    assert done.returncode == 0, done.stderr
    assert "neither the mean nor the sum of its halves'" in done.stderr


# test_same_as_fit.py has two calls of fit without an evaluation.
@pytest.mark.exhaustive
def test_a_program_clears_the_session_between_fits(tmp_path: pathlib.Path) -> None:
    """It waits for what runs, and synchronous workers once ran until the end."""
    text = """
    for _ in range(2):
        keras.utils.clear_session()
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=20)
    """
    done = _run(tmp_path, text, *_SERVERS, "--update=sync")
    assert done.returncode == 0, done.stderr
    assert processes.result_of(tmp_path / "run")["steps"] == 6


@pytest.mark.parametrize(
    ("own_step", "loss"),
    [
        (False, "ops.mean(ops.square(y - p), axis=-1)"),
        further(True, "ops.mean(ops.square(y - p), axis=-1)"),
        # Another remark, on the loss, comes before.
        (True, "ops.mean(ops.square(y - p)) / ops.mean(ops.square(y))"),
    ],
)
def test_state_that_replicas_cannot_average_is_named(
    tmp_path: pathlib.Path, own_step: bool, loss: str
) -> None:
    """A vector quantizer with moving averages keeps such counts of its codes."""
    text = f"""
    from keras import ops

    class Counted(keras.layers.Layer):
        def build(self, shape):
            self.sum, self.largest, self.mean, self.steps, self.never_assigned = (
                self.add_weight((4,), "ones", trainable=False, name=name)
                for name in ("sum", "largest", "mean", "steps", "never_assigned")
            )
            self.rows, self.calls = (
                self.add_weight((), "zeros", "int32", trainable=False, name=name)
                for name in ("rows", "calls")
            )
            self.generator = keras.random.SeedGenerator(1)

        def call(self, inputs, training=False):
            for kept, change in (
                (self.sum, ops.sum(inputs, axis=0)),
                (self.largest, ops.max(inputs, axis=0)),
                (self.mean, ops.mean(inputs, axis=0)),
                (self.steps, 1.0),
            ):
                if training:
                    kept.assign(0.9 * kept + 0.1 * change)
            if training:
                self.rows.assign_add(ops.shape(inputs)[0])
                self.calls.assign_add(1)
                keras.random.uniform(ops.shape(inputs), seed=self.generator)
            return inputs

    class Own(keras.Sequential):
        if {own_step}:
            def train_step(self, data):
                return super().train_step(data)

    counted = Counted(name="counted")
    layers = [counted, keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = Own(layers)
    model.compile("sgd", lambda y, p: {loss})
    model.fit(x, y, batch_size=20)
    """
    done = _run(tmp_path, text, *_MIRRORED)
    assert done.returncode == 0, done.stderr
    (found,) = re.findall("the state (.*) changes by no mean", done.stderr)
    names = [path.rpartition("/")[2] for path in found.split(", ")]
    assert names == ["sum", "largest", "rows"]


@pytest.mark.parametrize(
    ("strategy", "code"), [(("--strategy=one_device",), 0), (_MIRRORED, 2)]
)
def test_a_step_of_pairs_along_the_first_axis_has_one_replica(
    tmp_path: pathlib.Path, strategy: tuple[str, ...], code: int
) -> None:
    """Keras's example of metric learning has batches of anchors and positives."""
    text = """
    import tensorflow as tf

    class Pairs(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            rows = x[index * 12 : index * 12 + 12]
            return np.stack([rows, rows + 0.1]).astype("float32")

    class Compared(keras.Sequential):
        def train_step(self, pairs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(pairs[0]) * self(pairs[1])))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    model, expected = (
        Compared([keras.layers.Input((4,)), keras.layers.Dense(1)]) for _ in range(2)
    )
    expected.set_weights(model.get_weights())
    model.compile("sgd")
    expected.compile("sgd")
    for pairs in (Pairs()[index] for index in range(5)):
        expected.train_step(tf.constant(pairs))
    model.fit(Pairs(), shuffle=False)
    found, wanted = (one.get_weights()[0] for one in (model, expected))
    print("found", np.abs(found - wanted).max() < 1e-6)
    """
    done = _run(tmp_path, text, *strategy)
    assert done.returncode == code, done.stderr
    if code:
        assert "Compared.train_step computes batches of" in done.stderr
        assert "choose --strategy=one_device" in done.stderr
    else:
        assert "found True" in done.stdout


# A cell of a recurrent layer; most programs have layers that Keras builds before.
@pytest.mark.parametrize("strategy", [_MIRRORED, further(_SERVERS)])
def test_layers_that_only_a_call_builds_are_trained(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    """Keras knows the shapes of a cell's outputs, and calls it in the first step."""
    text = """
    class Cell(keras.layers.Layer):
        state_size = 3

        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(3, use_bias=False)

        def call(self, inputs, states):
            outputs = self.inner(inputs) + states[0]
            return outputs, [outputs]

    cell = Cell()
    model = keras.Sequential([keras.Input((4, 1)), keras.layers.RNN(cell)])
    assert not model.weights
    model.compile("adam", "mse")
    model.fit(x[:, :, None], x[:, :3], batch_size=20)
    print("found", [tuple(w.shape) for w in model.optimizer.variables[2:]])
    """
    done = _run(tmp_path, text, *strategy)
    assert done.returncode == 0, done.stderr
    assert "found [(1, 3), (1, 3)]" in done.stdout


# Workers make the same weights by the seed of the run, in other tests as well.
@pytest.mark.exhaustive
def test_workers_have_the_chiefs_variables_of_any_type(tmp_path: pathlib.Path) -> None:
    """Collectives do not send initial values of bfloat16 and uint8."""
    text = """
    import json, os

    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

    class Kept(keras.layers.Layer):
        def build(self, shape):
            for dtype in ("bfloat16", "uint8", "bool", "int64"):
                value = keras.initializers.Constant(task)
                self.add_weight((2,), value, dtype, trainable=False, name=dtype)

        def call(self, inputs):
            return inputs

    kept = Kept()
    model = keras.Sequential([kept, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    # Workers end with the last call.
    for _ in range(2):
        model.fit(x, y, batch_size=20)
        print("found", task, [float(sum(w.numpy())) for w in kept.weights])
    """
    done = _run(tmp_path, text, *_WORKERS)
    assert done.returncode == 0, done.stderr
    assert "found 0 [0.0, 0.0, 0.0, 0.0]" in done.stdout
    (log,) = (tmp_path / "run/logs").glob("worker-1*")
    assert "found 1 [0.0, 0.0, 0.0, 0.0]" in log.read_text()


_HELP_OF_ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rate", help="step size")
parser.parse_args()
"""
# It ends with exit code 1.
_HELP_OF_ABSL = """
from absl import app, flags
flags.DEFINE_float("rate", 0.1, "step size")
app.run(lambda _: model.fit(x, y))
"""


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (("--strategy=one_device",), _HELP_OF_ABSL),
        further(_WORKERS, _HELP_OF_ARGPARSE),
        further(_SERVERS, _HELP_OF_ARGPARSE),
    ],
)
def test_a_program_may_print_its_own_help(
    tmp_path: pathlib.Path, strategy: tuple[str, ...], text: str
) -> None:
    done = _run(tmp_path, text, *strategy, "--", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("step size") == 1
    assert not (tmp_path / "run").exists()


def test_flags_override_a_program_when_they_are_given(tmp_path: pathlib.Path) -> None:
    text = "model.fit(x, y, epochs=3, batch_size=20)"
    rate = ("--learning_rate=0.001", "--global_batch_size=64", "--train_steps=2")
    done = _run(tmp_path, text, "--strategy=one_device", *rate)
    assert done.returncode == 0, done.stderr
    assert processes.result_of(tmp_path / "run")["steps"] == 2
    last = processes.metrics_of(tmp_path / "run")[-1]
    # The default of the flag, but given.
    assert last["learning_rate"] == pytest.approx(0.001)


def test_epochs_are_counted_as_the_program_counts_them(tmp_path: pathlib.Path) -> None:
    text = """
        fit = {"epochs": 5, "batch_size": 20, "steps_per_epoch": 2}
        print("found", model.fit(x, y, **fit).epoch)
        print("found", model.fit(x, y, initial_epoch=3, **fit).epoch)
    """
    done = _run(tmp_path, text, "--strategy=one_device", "--epochs=4")
    assert done.returncode == 0, done.stderr
    assert "found [0, 1, 2, 3]\n" in done.stdout
    assert "found [3]\n" in done.stdout
    # Of 3 batches: epochs of 2, 1, 2 and 1 steps, and one of 2.
    assert processes.result_of(tmp_path / "run")["steps"] == 8


@pytest.mark.parametrize("strategy", [_MIRRORED, further(_WORKERS), further(_SERVERS)])
def test_a_program_with_no_epoch_left_ends_as_with_keras(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    text = "print('found', model.fit(x, y, epochs=3, initial_epoch=3).epoch)"
    done = _run(tmp_path, text, *strategy)
    assert done.returncode == 0, done.stderr
    assert "found []\n" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--mode=explain", "--strategy=one_device"),
        further(("--mode=verify", "--strategies=mirrored")),
        further(("--mode=compare", "--strategies=one_device")),
    ],
)
def test_a_mode_that_measures_needs_an_epoch(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    done = _run(tmp_path, "model.fit(x, y, epochs=3, initial_epoch=3)", *flags)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "initial_epoch" in errors[0]
    assert "compare" in flags[0] or not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise KeyError('lost')", ("train.py, line 9, failed", "KeyError", "lost")),
        further("model.fit(x, y)\n1 / 0", ("line 10, failed", "ZeroDivisionError")),
        ("\nexec('x = (')", ("line 10, failed", "SyntaxError: '(' was never")),
        ("print(1)", ("without a call of keras.Model.fit",)),
        further("model.fit(x, y)\nraise SystemExit(3)", ("line 10", "sys.exit(3)")),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--widht=7'])",
            ("refuses its arguments (none)", "follow after --"),
        ),
        further(
            "from absl import app\napp.run(lambda _: 0, ['train', '--widht=7'])",
            ("refuses its arguments (none)", "follow after --"),
        ),
        further(
            "from absl import app\napp.run(lambda _: 7, ['train'])",
            ("line 10", "sys.exit(7)"),
        ),
        ("model.fit(x)", ("no labels",)),
        (
            "model.compile('sgd', lambda y, found: found[:, 0])\nmodel.fit(x)",
            ("fit has no labels (y)",),
        ),
        (
            "model.fit(x, y[:9])",
            (
                "fit refuses its training data",
                "'y' sizes: 9",
            ),
        ),
        ("model.fit(x, y, batch_size=0)", ("batch_size=0",)),
        (
            "model.fit(x, y, callbacks=[keras.callbacks.EarlyStopping])",
            ("EarlyStopping'", "with parentheses"),
        ),
        (
            # TensorFlow's own copy of Keras 2, as old programs import it.
            "from tensorflow.python.keras.models import Sequential\n"
            "from tensorflow.python.keras.layers import Dense\n"
            "m = Sequential([Dense(1)])\nm.compile('sgd', 'mse')\nm.fit(x, y)",
            ("train.py, line 13", "fit of Keras 2", "import keras"),
        ),
        (
            "model.trainable = False\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)",
            ("error: --script=", "train.py has no weights to train"),
        ),
        ("model.fit(x[:0], y[:0])", ("its training data", "no examples")),
        further(
            "class Own(keras.callbacks.CallbackList):\n    pass\n"
            "model.fit(x, y, callbacks=Own())",
            ("fit has a Own for its callbacks",),
        ),
        (
            "m = keras.Sequential([keras.layers.Dense(1)])\nm.compile('sgd')\n"
            "m.fit(x, y)",
            ("No loss to compute",),
        ),
        (
            "model.fit(x, y, epoch=2)",
            ("fit got an unexpected keyword argument 'epoch'",),
        ),
        ("model.fit(x, y, validation_split=0.999)", ("validation_split=0.999",)),
        (
            "import tensorflow as tf\ndata = tf.data.Dataset.from_tensors((x, y))\n"
            "model.fit(data, validation_split=0.2)",
            ("`validation_split` is only supported for", "TensorDataset"),
        ),
        (
            "import threading\nt = threading.Thread(target=model.fit, args=(x, y))\n"
            "t.start()\nt.join()",
            ("fit in a thread",),
        ),
        (
            "from tensorflow.python.distribute import mirrored_strategy\n"
            "own = mirrored_strategy.MirroredStrategy()\n"
            "with own.scope():\n  m = keras.Sequential([keras.layers.Dense(1)])\n"
            "  m.compile('sgd', 'mse')\nm.fit(x, y)",
            ("MirroredStrategy of its own", "--strategy"),
        ),
        (
            "import tensorflow as tf\n"
            "own = tf.distribute.MirroredStrategy()\n"
            "tf.distribute.coordinator.ClusterCoordinator(own)",
            ("a ClusterCoordinator", "--strategy=parameter_server"),
        ),
        (
            "class Largest(keras.metrics.Metric):\n"
            "  def __init__(self):\n    super().__init__(name='largest')\n"
            "    self.most = self.add_variable((), 'zeros')\n"
            "  def update_state(self, y_true, y_pred, sample_weight=None):\n"
            "    highest = keras.ops.max(y_pred)\n"
            "    self.most.assign(keras.ops.maximum(self.most, highest))\n"
            "  def result(self):\n    return self.most.value\n"
            "model.compile('sgd', 'mse', metrics=[Largest()])\nmodel.fit(x, y)",
            ("'largest'", "not sums over examples"),
        ),
        (
            "class Own(keras.Model):\n  def train_step(self, data):\n    return {}\n"
            "m = Own()\nm.compile('sgd', 'mse')\nm.fit(x, y)",
            ("Own.train_step", "apply_gradients"),
        ),
        (
            "class Own(keras.Sequential):\n"
            "  def make_train_function(self, force=False):\n"
            "    super().make_train_function(force)\n"
            "m = Own([keras.layers.Dense(1)])\nm.compile('sgd', 'mse')\nm.fit(x, y)",
            ("Own", "make_train_function", "train_step"),
        ),
        (
            "class Own(keras.optimizers.SGD):\n"
            "  def update_step(self, gradient, variable, learning_rate):\n"
            "    raise KeyError('momentum')\n"
            "model.compile(Own(), 'mse')\nmodel.fit(x, y)",
            ("train.py, line 11, failed", "KeyError: 'momentum'"),
        ),
        (
            "layers = [keras.layers.SimpleRNN(1, stateful=True, name='kept')]\n"
            "m = keras.Sequential([keras.Input(batch_shape=(20, 4, 1)), *layers])\n"
            "m.compile('sgd', 'mse')\nm.fit(x[..., None], y, batch_size=20)",
            ("the layer 'kept'", "one_device", "stateful=False"),
        ),
        (
            "class Noise(keras.layers.Layer):\n"
            "  def call(self, x):\n    return x + keras.random.normal((20, 4))\n"
            "m = keras.Sequential([Noise(), keras.layers.Dense(1)])\n"
            "m.compile('sgd', 'mse')\nm.fit(x, y, batch_size=20)",
            (
                "train.py, line 11, failed",
                "replicas get parts of a batch",
                "from the inputs",
            ),
        ),
        (
            "layer = model.layers[0]\nlayer.trainable = False\n"
            "model = keras.Sequential([layer, keras.layers.Dense(1)])\n"
            "model.compile('adam', 'mse')\nmodel.fit(x, y)\nlayer.trainable = True\n"
            "model.compile(model.optimizer, 'mse')\nmodel.fit(x, y)",
            ("Adam", "built for other weights", "/kernel", "a new optimizer"),
        ),
        (
            "model.fit((row for row in [(x, y)]), epochs=2)",
            ("generator", "steps_per_epoch"),
        ),
        (
            "model.fit((row for row in [(x, y)] * 3), epochs=2, steps_per_epoch=2)",
            ("a generator", "ended after 3 batches"),
        ),
        (
            "class Own(keras.callbacks.Callback):\n"
            "  def on_epoch_begin(self, epoch, logs=None):\n"
            "    self.model.compile('adam', 'mse')\n"
            "    self.model.make_train_function()\n"
            "model.fit(x, y, callbacks=[Own()])",
            ("on_epoch_begin of a callback", "stop_training"),
        ),
        further(
            "class Own(keras.callbacks.Callback):\n"
            "  def on_train_begin(self, logs=None):\n"
            "    rate = keras.optimizers.schedules.CosineDecay(0.2, 8)\n"
            "    self.model.optimizer.learning_rate = rate\n"
            "model.fit(x, y, callbacks=[Own()])",
            ("on_train_begin of a callback", "set a number"),
        ),
    ],
)
def test_what_goes_wrong_in_a_program_is_one_line(
    tmp_path: pathlib.Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_MODEL.lstrip("\n") + text)
    done = processes.run(
        f"--script={path}", f"--run_dir={tmp_path / 'run'}", "--strategy=one_device"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words), lines[0]
    assert r"\n" not in lines[0]


@pytest.mark.parametrize(
    ("part", "flags", "words"),
    [
        ("regularizer", ("--strategy=one_device",), "is assigned in a step, and"),
        ("constraint", _MIRRORED, "is assigned in the update of each replica"),
    ],
)
def test_a_part_of_a_layer_assigns_no_outer_variable(
    tmp_path: pathlib.Path, part: str, flags: tuple[str, ...], words: str
) -> None:
    """The first one would keep its old value, and the second be halved twice."""
    done = _run(
        tmp_path,
        f"""
        factor = keras.Variable(1.0, trainable=False, name="factor")

        def halved(weight):
            factor.assign(0.5 * factor)
            return factor * weight

        m = keras.Sequential([keras.layers.Dense(1, kernel_{part}=halved)])
        m.compile("sgd", "mse")
        m.fit(x, y)
        """,
        *flags,
    )
    assert done.returncode == 2, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line[:6] == "error:"]
    assert "the variable 'factor" in error
    assert words in error


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--script=missing.py",), "--script=missing.py"),
        (("--script={path}", "--dataset=digits"), "--dataset"),
        (("--script={path}", "--momentum=0.5"), "--momentum"),
        (("--script={path}", "--strategy=model_parallel"), "model_parallel"),
        (("--script={path}", "--mode=doctor"), "--script"),
        (("--", "word"), "word"),
        (("--script={path}", "--widht=7"), "arguments of the program follow after --"),
        (("--script={path}", "a.csv"), "arguments of the program follow after --"),
    ],
)
def test_flags_that_do_not_fit_a_program_are_refused(
    tmp_path: pathlib.Path, flags: tuple[str, ...], words: str
) -> None:
    path = _write(tmp_path, "model.fit(x, y)")
    done = processes.run(*(flag.format(path=path) for flag in flags), folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_file_does_not_choose_the_program(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path, "model.fit(x, y)")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"model": {"script": str(path)}}))
    done = processes.run(f"--config={settings}", folder=tmp_path)
    assert done.returncode == 2
    assert f"--script={path}" in done.stderr


@pytest.mark.parametrize(
    ("strategy", "epochs"),
    # The second stops after the last epoch, where nothing is left to stop.
    [further(_MIRRORED, 9), (("--strategy=one_device",), 2), further(_WORKERS, 9)],
)
def test_a_callback_stops_every_task(
    tmp_path: pathlib.Path, strategy: tuple[str, ...], epochs: int
) -> None:
    done = _run(
        tmp_path,
        f"""
        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.optimizer.learning_rate = 0.5
                self.model.stop_training = epoch == 1

        history = model.fit(
            x, y, epochs={epochs}, batch_size=20, callbacks=[Stop()]
        )
        print("epochs", history.epoch, float(model.optimizer.learning_rate))
        """,
        *strategy,
    )
    assert done.returncode == 0, done.stderr
    assert "epochs [0, 1] 0.5\n" in done.stdout
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 6)


# test_several_fits.py has callbacks that raise, with several workers as well.
@pytest.mark.exhaustive
def test_a_callback_that_raises_ends_the_run(tmp_path: pathlib.Path) -> None:
    done = _run(
        tmp_path,
        """
        class Broken(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                raise KeyError("no such log")

        model.fit(x, y, callbacks=[Broken()])
        """,
        "--strategy=one_device",
    )
    assert done.returncode == 2, done.stderr
    assert "on_epoch_end" in done.stderr
    assert "no such log" in done.stderr


# 60 examples are batches of 25, 25 and 10, and 30 of 25 and 5. Shards are halves.
@pytest.mark.parametrize(
    ("strategy", "num_pairs"),
    [
        further(("--strategy=one_device",), [25**2 + 25**2 + 10**2, 25**2 + 5**2]),
        (_MIRRORED, [2 * (13**2 + 12**2 + 5**2), 13**2 + 12**2 + 3**2 + 2**2]),
        further(_WORKERS, [2 * (13**2 + 12**2 + 5**2), 13**2 + 12**2 + 3**2 + 2**2]),
    ],
)
def test_a_metric_that_counts_pairs_of_examples_counts_those_of_a_replica(
    tmp_path: pathlib.Path, strategy: tuple[str, ...], num_pairs: list[int]
) -> None:
    """A guide of Keras compares labels [n] with outputs [n, 1] in a metric."""
    done = _run(
        tmp_path,
        """
        class Near(keras.metrics.Metric):
            def __init__(self):
                super().__init__(name="near")
                self.pairs = self.add_weight(name="pairs", initializer="zeros")
            def update_state(self, y_true, y_pred, sample_weight=None):
                near = keras.ops.abs(y_true - y_pred) < 99
                near = keras.ops.cast(near, "float32")
                self.pairs.assign_add(keras.ops.sum(near))
            def result(self):
                return 1 * self.pairs

        def distance(y_true, y_pred):
            return keras.ops.abs(y_true - y_pred)

        model.compile("sgd", "mse", metrics=[Near(), distance])
        y = y.reshape(-1)
        held_out = (x[:30], y[:30])
        history = model.fit(x, y, batch_size=25, epochs=2, validation_data=held_out)
        for name in ("near", "val_near"):
            print(name, history.history[name])
        """,
        *strategy,
    )
    assert done.returncode == 0, done.stderr
    for name, count in zip(("near", "val_near"), num_pairs, strict=True):
        assert f"\n{name} [{count:.1f}, {count:.1f}]\n" in done.stdout, done.stdout
    for name in ("near", "distance"):
        named = f"metric '{name}' counts combinations of the examples of a batch"
        named += " (labels [n], predictions [n, 1])"
        is_divided = strategy != ("--strategy=one_device",)
        assert (named in done.stderr) == is_divided, done.stderr


def test_a_layer_that_normalizes_a_part_of_a_global_batch_is_named(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    model = keras.Sequential([model, keras.layers.BatchNormalization(name="norm")])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=20)
    """
    flags = ("--strategy=mirrored", "--num_replicas=2", "--train_steps=1")
    done = _run(tmp_path, text, *flags)
    assert done.returncode == 0, done.stderr
    assert "layer 'norm' normalizes 10 of the 20 rows of a global batch" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "program", ["variational_autoencoder", "generative_adversarial_network"]
)
def test_ballast_of_a_prediction_is_sent_with_a_step_of_its_own(
    tmp_path: pathlib.Path, program: str
) -> None:
    """Such a step does not add the penalty that gives ballast its gradient."""
    done = processes.run(
        *(f"--script={path_of(program)}", "--strategy=mirrored", "--train_steps=1"),
        *("--set=model.ballast=true", "--set=report.record_steps=true"),
        f"--run_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    gradients = Recording(tmp_path / "run").read(1).gradients
    (ballast,) = (value for name, value in gradients.items() if "ballast" in name)
    # The fractions of both replicas add up to one.
    np.testing.assert_allclose(ballast, 1e-6, rtol=1e-5)


def test_a_model_that_is_not_compiled_is_refused(tmp_path: pathlib.Path) -> None:
    text = "keras.Sequential([keras.layers.Dense(1)]).fit(x, y)"
    done = _run(tmp_path, text, "--strategy=one_device")
    assert done.returncode == 2, done.stderr
    assert "call its compile first" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            """
            keras.mixed_precision.set_global_policy("mixed_float16")
            model.fit(x, y)
            """,
            ("--dtype=float64 contradicts mixed_float16", "--script="),
        ),
        # TensorFlow 2.21 has no InTopKV2 for float64.
        (
            """
            top = keras.metrics.SparseTopKCategoricalAccuracy(2)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            model.compile("sgd", "sparse_categorical_crossentropy", metrics=[top])
            model.fit(x, np.ones(60))
            """,
            ("InTopKV2", "leave out --dtype=float64"),
        ),
    ],
    ids=["policy", "metric"],
)
def test_what_takes_no_double_precision_is_said(
    tmp_path: pathlib.Path, text: str, words: tuple[str, ...]
) -> None:
    done = _run(tmp_path, text, "--strategy=one_device", "--dtype=float64")
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


# test_resumed_fits.py has killed programs that end with the weights of one left alone,
# and ../run_dir/test_resume.py the rows of a killed run and its random layers.
@pytest.mark.exhaustive
def test_a_killed_program_ends_with_the_weights_of_one_left_alone(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    import os, pathlib, signal

    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def call(self, values, training=False):
            noise = tf.random.normal(tf.shape(values))
            return values + noise if training else values

    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 5 and not pathlib.Path("killed").exists():
                pathlib.Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    model = keras.Sequential([model, Noise()])
    model.compile("adam", "mse")
    model.fit(x, y, epochs=2, batch_size=16)
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=8, initial_epoch=2, batch_size=16, callbacks=[Kill()])
    """
    often = ("--strategy=one_device", "--checkpoint_every_steps=3")
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        folder.mkdir()
    (alone / "killed").touch()
    assert _run(alone, text, *often).returncode == 0
    assert _run(killed, text, *often).returncode == -9
    done = _run(killed, text, *often, "--resume=auto")
    assert done.returncode == 0, done.stderr
    results = [processes.result_of(folder / "run") for folder in (alone, killed)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[1]["steps"] == 4 * 8
    steps = [row["step"] for row in processes.metrics_of(killed / "run")]
    assert steps == sorted(steps)
    assert {8, 32} <= set(steps)


# test_same_as_fit.py compares some of them with Keras, and test_stream.py reads Grain.
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", [_MIRRORED, _WORKERS, _SERVERS])
@pytest.mark.parametrize("program", NAMES)
def test_programs_of_users_run_unchanged(
    tmp_path: pathlib.Path, program: str, strategy: tuple[str, ...]
) -> None:
    refused = set()
    if strategy is _SERVERS:
        refused.add("generative_adversarial_network")
    if "mirrored" in strategy[0] or "parameter_server" in strategy[0]:
        refused.add("accumulated_gradients")
    done = processes.run(
        f"--script={path_of(program)}",
        f"--run_dir={tmp_path / 'run'}",
        *strategy,
        *("--", str(tmp_path)) * (program == "classifier_with_callbacks"),
        folder=tmp_path,
    )
    assert done.returncode == (2 if program in refused else 0), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", ["on_epoch_end", "on_train_end"])
def test_a_killed_program_remembers_what_its_callbacks_knew(
    tmp_path: pathlib.Path, moment: str
) -> None:
    """EarlyStopping counts its patience, and keeps the weights of the first epoch."""
    text = f"""
    import os, pathlib, signal

    class Kill(keras.callbacks.Callback):
        def {moment}(self, *arguments):
            if "{moment}" == "on_epoch_end" and arguments[0] != 2:
                return
            if not pathlib.Path("killed").exists():
                pathlib.Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    stop = keras.callbacks.EarlyStopping(
        monitor="loss", min_delta=99, patience=4, restore_best_weights=True
    )
    log = keras.callbacks.CSVLogger("log.csv")
    model.compile("adam", "mse")
    history = model.fit(
        x, y, epochs=9, batch_size=16, callbacks=[Kill(), stop, log]
    )
    print("trained", history.history["loss"], stop.wait, stop.stopped_epoch)
    print("weights", [w.tolist() for w in model.get_weights()])
    """
    often = ("--strategy=one_device", "--checkpoint_every_steps=3")
    alone, killed = tmp_path / "alone", tmp_path / "killed_run"
    for folder in (alone, killed):
        folder.mkdir()
    (alone / "killed").touch()
    undisturbed = _run(alone, text, *often)
    assert _run(killed, text, *often).returncode == -9
    resumed = _run(killed, text, *often, "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    found, expected = (
        [line for line in done.stdout.splitlines() if line.startswith(("tr", "we"))][
            -2:
        ]
        for done in (resumed, undisturbed)
    )
    assert found == expected
    assert processes.result_of(killed / "run")["steps"] == 20
    epochs = [row.split(",")[0] for row in (killed / "log.csv").read_text().split()]
    assert epochs == ["epoch", *map(str, range(5))]
