"""Names of functions: from flags only, and refused in words if they lead nowhere."""

import json
import pathlib

import pytest

from strategies.common.errors import UsageError
from tests.markers import further
from tests.processes import run
from trainers.cli import flags
from trainers.main import main

FACTORIES = "tests.trainers.user_code.factories"
MODEL = f"{FACTORIES}:subclassed"
DATA = f"{FACTORIES}:arrays"


def test_a_file_names_no_function_to_run(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model": {"model": MODEL}, "data": {"dataset": DATA}}),
        encoding="utf-8",
    )
    with pytest.raises(UsageError) as caught:
        flags.parse(["", f"--config={path}", f"--model={MODEL}"])
    assert f"add --dataset={DATA} if you know them" in str(caught.value)
    # What flags give comes before what the file says.
    both = flags.parse(
        [
            "",
            f"--config={path}",
            f"--model={MODEL}",
            "--dataset=tests.trainers.user_code.factories:other",
        ]
    )
    assert both.model.model == MODEL
    assert both.data.dataset == f"{FACTORIES}:other"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_such_package.module:f", "there is no module no_such_package"),
        (
            "tests.trainers.user_code.no_such:f",
            "there is no module tests.trainers.user_code.no_such",
        ),
        (f"{FACTORIES}:no_such", "has no function no_such; it has "),
        (
            f"{FACTORIES}:gide",
            f"error: --model={FACTORIES}:gide: {FACTORIES} has no function gide; ",
        ),
        (f"{FACTORIES}:gide", "(did you mean guide?)."),
        (
            f"{FACTORIES}:guide_loss",
            "guide_loss: missing a required argument: 'y_pred'; the function is called "
            "with a description of the data as its only argument: give",
        ),
        (f"{FACTORIES}:not_a_model", "returned a str: return a keras.Model"),
        (f"{FACTORIES}:raising", "failed (KeyError: 'no such file')"),
        (f"{FACTORIES}:not_compiled", "--loss is missing"),
        (f"{FACTORIES}:own_training", "has a train_step of its own"),
        (f"{FACTORIES}:mean_of_a_batch", "one number for a whole batch"),
        (f"{FACTORIES}:two_in_two_out", "failed ("),
    ],
)
def test_what_leads_nowhere_is_refused_in_a_line(
    model: str,
    words: str,
    tmp_path: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    given = [f"--model={model}", f"--dataset={DATA}", f"--run_dir={folder}"]
    assert main(["", "--strategy=one_device", *given]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert words in line
    assert ", _" not in line
    assert not folder.exists()


def test_the_models_of_the_project_want_one_array_and_ids(
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = ["--model=mlp", "--dataset=tests.trainers.user_code.factories:several"]
    assert main(["", "--strategy=one_device", *given]) == 2
    assert "--model must be your own for this data set" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "remark"),
    [
        (
            "--warmup_steps=8",
            "--warmup_steps=8 are more than the 2 steps of this training: its learning "
            "rate rises to 0.25 of the full one",
        ),
        further("--callbacks=mine:callbacks", ""),
    ],
)
def test_it_is_said_if_the_model_was_compiled_with_another_optimizer(
    given: str, remark: str, tmp_path: pathlib.Path
) -> None:
    """And if the learning rate of the flags ends before it has risen."""
    (tmp_path / "mine.py").write_text(
        "import keras\n"
        "def model():\n"
        "    made = keras.Sequential([keras.layers.Dense(3)])\n"
        "    loss = 'sparse_categorical_crossentropy'\n"
        "    made.compile(keras.optimizers.SGD(0.5), loss)\n"
        "    return made\n"
        "def callbacks():\n"
        "    return [keras.callbacks.TerminateOnNaN()]\n",
        encoding="utf-8",
    )
    words = ["--model=mine:model", f"--dataset={DATA}", "--train_steps=2"]
    words += ["--jit_compile=off"]
    place = f"--run_dir={tmp_path / 'run'}"
    done = run(*words, given, place, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert remark in done.stderr
    assert (
        "the model was compiled with sgd with the rate 0.5, and is trained with "
        "--optimizer=adam --learning_rate=0.001"
    ) in done.stderr


# ../modes/test_callbacks_of_run.py has a file that several workers read.
@pytest.mark.parametrize("strategy", ["one_device", further("multi_worker_mirrored")])
def test_a_factory_is_found_in_a_file(tmp_path: pathlib.Path, strategy: str) -> None:
    """Its name may be that of a package of this project, and it imports a neighbour."""
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "neighbour.py").write_text("UNITS = 3\n", encoding="utf-8")
    (folder / "models.py").write_text(
        "import keras\n"
        "import numpy as np\n"
        "from neighbour import UNITS\n"
        "def model():\n"
        "    made = keras.Sequential([keras.layers.Dense(UNITS)])\n"
        "    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
        "    made.compile(loss=loss)\n"
        "    return made\n"
        "def data():\n"
        "    x = np.random.default_rng(0).normal(size=(40, 4)).astype('float32')\n"
        "    return x, (x[:, 0] > 0).astype('int64')\n",
        encoding="utf-8",
    )
    given = [f"--{name}=my models/models.py:{f}" for name, f in _NAMES]
    few = ("--train_steps=2", "--jit_compile=off")
    done = run(*given, f"--strategy={strategy}", *few, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "runs").iterdir()
    assert "models.py-model" in made.name


_NAMES = (("model", "model"), ("dataset", "data"))


def test_a_file_that_is_missing_is_named(tmp_path: pathlib.Path) -> None:
    done = run("--model=no/such.py:model", f"--dataset={DATA}", folder=tmp_path)
    assert done.returncode == 2
    assert "there is no file no/such.py" in done.stderr
    assert not list(tmp_path.iterdir())
