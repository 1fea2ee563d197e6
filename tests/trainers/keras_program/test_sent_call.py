"""fit of the Python API: a notebook's model, trained by the processes of a strategy."""

import pathlib
import re
import subprocess
import textwrap
from collections.abc import Iterator

import keras
import numpy as np
import pytest

from strategies.common.errors import UsageError
from tests import processes
from tests.markers import further
from trainers.keras_program.sent_call import SentCall
from trainers.run_dir.run_dir import RunDir

_NOTEBOOK = """
import keras
import numpy as np

import trainers

if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    y = x[:, :1] * 2

    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    @keras.saving.register_keras_serializable("own")
    class Halved(keras.layers.Layer):
        def call(self, inputs):
            return inputs / 2

    @keras.saving.register_keras_serializable("own")
    def squared_error(labels, predictions):
        return keras.ops.mean(keras.ops.square(labels - predictions), axis=-1)

    def made():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(
            Halved()(Doubled()(keras.layers.Dense(3)(inputs)))
        )
        model = keras.Model(inputs, outputs, name="my.line")
        model.compile(keras.optimizers.Adam(0.01), squared_error, metrics=["mae"])
        return model
"""


def _run(folder: pathlib.Path, cell: str) -> subprocess.CompletedProcess[str]:
    path = folder / "notebook.py"
    path.write_text(_NOTEBOOK + textwrap.indent(textwrap.dedent(cell), "    "))
    return processes.run_module(path.stem, folder=folder)


_MIRRORED = 'strategy="mirrored", settings={"num_replicas": 3}'
_WORKERS = 'strategy="multi_worker_mirrored", settings={"num_workers": 2}'


@pytest.mark.parametrize(
    ("strategy", "is_sent_twice"),
    [(_MIRRORED, False), further(_MIRRORED, True), further(_WORKERS, True)],
)
def test_it_trains_as_the_model_itself(
    tmp_path: pathlib.Path, strategy: str, is_sent_twice: bool
) -> None:
    """Calls `fit` twice: the optimizer continues with its state, and comes back.

    The optimizer of a model that is built has no state before it trains, of which Keras
    would warn.
    """
    sent = f"trainers.fit(model, x, y, **given, {strategy})"
    done = _run(
        tmp_path,
        f"""
        model, other = made(), made()
        other.set_weights(model.get_weights())
        given = dict(batch_size=16, epochs=2, shuffle=False, verbose=0)
        {sent if is_sent_twice else "model.fit(x, y, **given)"}
        other.fit(x, y, **given)
        history = {sent}
        expected = other.fit(x, y, **given)
        assert history.epoch == expected.epoch
        assert history.model is model
        assert history.history.keys() == expected.history.keys()
        for name, values in expected.history.items():
            # Seen: 5e-8. Three replicas add in another order in float32.
            np.testing.assert_allclose(history.history[name], values, rtol=1e-6)
        for one, two in ((model, other), (model.optimizer, other.optimizer)):
            for found, expected in zip(one.variables, two.variables, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert int(model.optimizer.iterations) == 16
        print("all equal", float(model.predict(x[:1], verbose=0)[0, 0]))
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "all equal" in done.stdout
    assert "Warning" not in done.stdout + done.stderr
    num_runs = done.stdout.count("model     my_line, 19 parameters")
    assert num_runs == (2 if is_sent_twice else 1)


def test_a_model_that_fit_builds_comes_back_trained(tmp_path: pathlib.Path) -> None:
    """The model is a list of layers without an input, as in most notebooks."""
    done = _run(
        tmp_path,
        """
        layers = [keras.layers.Dense(3), keras.layers.Dense(1)]
        model = keras.Sequential(layers, name="long" * 75)
        model.compile("adam", "mse")
        trainers.fit(model, x, y, epochs=2, verbose=0, strategy="one_device")
        print("steps", int(model.optimizer.iterations), model.count_params())
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "steps 4 19" in done.stdout


def test_a_stopped_call_is_continued(tmp_path: pathlib.Path) -> None:
    """The next one is in another folder, and a notebook's model may have a new name.

    A second call has another order of examples, which it keeps when the notebook was
    started anew.
    """
    done = _run(
        tmp_path,
        """
        class Stop(keras.callbacks.Callback):
            def __init__(self, last_epoch):
                self.last_epoch = last_epoch

            def on_train_batch_end(self, batch, logs):
                print("loss of", self.last_epoch, batch, logs["loss"])

            def on_epoch_end(self, epoch, logs=None):
                import os, signal
                if epoch == self.last_epoch:
                    os.kill(os.getpid(), signal.SIGTERM)

        def made():
            layers = [keras.layers.Input((4,)), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(0.0), "mse")
            model.layers[0].kernel.assign(np.ones([4, 1]))
            return model

        def fit(model, last_epoch, **settings):
            given = dict(epochs=2, callbacks=[Stop(last_epoch)], strategy="one_device")
            trainers.fit(model, x, y, **given, settings=settings)

        model = made()
        fit(model, 2)
        try:
            fit(model, 0, run_dir="mine")
        except RuntimeError:
            model = made()
            fit(model, 3, run_dir="mine", resume="auto")
        print("steps", int(model.optimizer.iterations))
        # The updates of its optimizer are none again.
        model.compile(keras.optimizers.SGD(0.0), "mse")
        fit(model, 5, run_dir="anew")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "steps 8" in done.stdout
    advice = "continue  with the same call of trainers.fit and settings={'run_dir': "
    assert advice in done.stdout
    first, stopped, continued = (
        re.findall(rf"loss of {last_epoch} (.*)", done.stdout)
        for last_epoch in (2, 0, 3)
    )
    assert [len(first), len(stopped), len(continued)] == [4, 2, 2]
    assert first[0] != stopped[0]
    for name, seed in (("mine", 4), ("anew", 5)):
        assert RunDir(tmp_path / name).read_config().run.seed == seed


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (
            """
            import tensorflow as tf
            data = tf.data.Dataset.from_tensors((x, y))
            trainers.fit(made(), data)
            """,
            ("cannot send its arguments", "--script"),
        ),
        ("trainers.fit(keras.Sequential(), x, y)", ("not compiled",)),
        (
            "trainers.fit(made(), x, y, strategy='mirored')",
            ("mirored", "mirrored"),
        ),
        (
            "trainers.fit(made(), x, y, settings={'dataset': 'digits'})",
            ("--dataset", "program"),
        ),
    ],
)
def test_what_cannot_be_sent_is_one_line(
    tmp_path: pathlib.Path, cell: str, words: tuple[str, ...]
) -> None:
    done = _run(tmp_path, cell)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("strategies.common.errors.UsageError: ")
    assert all(word in last for word in words), last
    assert not (tmp_path / "runs").exists()


@keras.saving.register_keras_serializable("sent")
class Net(keras.Model):
    """A model whose layers are in no configuration."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.base = keras.layers.Dense(4, activation="tanh")
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.base(inputs))


@pytest.fixture
def _half_precision() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.usefixtures("_half_precision")
def test_what_is_frozen_is_sent(tmp_path: pathlib.Path) -> None:
    """A layer of a class and one variable; the third call thaws without `compile`.

    Layers of a class have the precision of the notebook.
    """
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    given = {"x": x, "y": x[:, :1], "shuffle": False, "verbose": 0}
    model, other = Net(), Net()
    for one in (model, other):
        one(x[:2])
        one.base.trainable = one.head.bias.trainable = False
        one.compile("adam", lambda labels, found: (labels - found) ** 2)
    other.set_weights(model.get_weights())
    for number in range(3):
        for one in (model, other):
            one.base.trainable = number == 2
        call = SentCall(tmp_path / str(number))
        call.folder.mkdir()
        call.send(model, (), given)
        # In a process of the run this is so until the program sets it.
        keras.config.set_dtype_policy("float32")
        call.run()
        call.receive(model)
        other.fit(**given)
        for one, two in ((model, other), (model.optimizer, other.optimizer)):
            for found, expected in zip(one.variables, two.variables, strict=True):
                np.testing.assert_array_equal(found, expected)


class OwnCompile(Net):
    """A model like https://keras.io/examples/vision/knowledge_distillation."""

    def compile(self, own_optimizer):
        super().compile()
        self.own_optimizer = own_optimizer


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("compile", "OwnCompile .* compile of its own"),
        ("train_step", "the train_step .* on 'net"),
        ("call of a layer", "the call .* on 'dense"),
    ],
)
def test_what_no_file_keeps_is_refused(
    tmp_path: pathlib.Path, kind: str, words: str
) -> None:
    model = OwnCompile() if kind == "compile" else Net()
    model(np.zeros([2, 3]))
    model.compile("sgd")
    if kind == "train_step":
        model.train_step = lambda data: {}
    elif kind != "compile":
        model.base.call = lambda inputs: inputs
    with pytest.raises(UsageError, match=words):
        SentCall(tmp_path).send(model, (), {})
    assert not list(tmp_path.iterdir())
