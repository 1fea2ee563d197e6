"""Models and data that cannot be trained are refused in one line, before a run."""

import json
import pathlib
import pwd

import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests.processes import ROOT, run
from trainers.cli.tensorflow_setup import check_backend
from trainers.main import main
from trainers.user_code import wrap_user_errors

UNFIT = "tests.trainers.user_code.unfit"
MADE = "tests.trainers.user_code.factories"


def refused(
    capfd: pytest.CaptureFixture[str], folder: pathlib.Path, *flags: str
) -> str:
    """Checks that a command ends with exit code 2 and no folder; returns its error."""
    place = folder / "run"
    given = ["", "--strategy=one_device", "--train_steps=3", f"--run_dir={place}"]
    assert main([*given, *flags]) == 2
    (line,) = [
        line
        for line in capfd.readouterr().err.splitlines()
        if line.startswith("error: ")
    ]
    assert not place.exists()
    assert "\x1b" not in line
    assert r"\x1b" not in line
    return line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("strings", "the data has features of strings, which the model takes"),
        ("objects_of_strings", "the data has features of strings"),
        ("string_labels", "the data has labels of strings"),
        ("complex_numbers", "the data has features of complex numbers"),
        ("alone", "returned one array of shape [60, 5], without labels"),
        ("triple", "returned 3 things (Weights of examples are not taken"),
        ("two_triples", "returned two triples"),
        ("reads_arrays", "reads NumPy arrays, which every batch would share"),
        ("reads_three_rows", "reads 3 rows of features for one index"),
        ("trains_on_three_rows", "reads 3 rows of features for one index"),
        ("batches", "returned a Batches: return (features, labels)"),
        ("two_of_batches", "returned a Batches where an array is needed"),
        ("generator", "returned a generator: return"),
        ("loader", "returned a Unordered where an array is needed"),
        ("dates", "returned an array of datetime64[D], which is neither"),
        ("ragged", "returned a RaggedTensor where an array is needed"),
        ("ragged_lists", "returned examples of several shapes"),
        ("sparse", "returned a SparseTensor where an array is needed"),
        ("dataset_of_sparse", "with elements of SparseTensor: turn them"),
        ("dataset_of_ragged", "with elements of RaggedTensor: turn them"),
        ("dataset_of_several_shapes", "returned examples of several shapes"),
        ("no_numbers", "returned features of shape [n, 0], in which there is no"),
        ("labels_from_minus_one", "a label that is -1, and the model has 3 outputs"),
        ("labels_in_a_column", "and the model has 3 outputs for classes, 0 to 2"),
        ("labels_not_a_number", "a label that is not a number"),
        ("more_classes_to_evaluate", "and the model has 3 outputs for classes"),
        ("ends_well", f"{UNFIT}:ends_well calls sys.exit(0)"),
        ("ends_as_if_diverged", f"{UNFIT}:ends_as_if_diverged calls sys.exit(3)"),
        ("ends_otherwise", "failed (GeneratorExit"),
        ("with_an_argument", "'path'; the function is called with no argument: give"),
        ("colorful", "failed (ValueError: bold words): correct it"),
    ],
)
def test_data_is_refused(
    name: str, words: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        capfd, tmp_path, f"--model={UNFIT}:connected", f"--dataset={UNFIT}:{name}"
    )
    assert words in line


def test_labels_that_would_be_too_many_classes_are_refused(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        capfd, tmp_path, "--model=mlp", f"--dataset={UNFIT}:labels_too_large"
    )
    assert "ids of classes, 0 to 999,999 at most" in line


def test_arrays_that_every_batch_would_share_are_refused_for_any_model(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(capfd, tmp_path, "--model=mlp", f"--dataset={UNFIT}:reads_arrays")
    assert "reads NumPy arrays" in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ends_well", f"--model={UNFIT}:ends_well calls sys.exit(0)"),
        ("ends_as_if_diverged", "calls sys.exit(3)"),
        ("ending_layer", "calls sys.exit(0)"),
        ("frozen", "has no weights to train: none of its layers"),
        ("too_few_outputs", "a label that is 2, and the model has 2 outputs"),
        ("misspelled_loss", "(ValueError: Could not interpret loss identifier"),
        ("misspelled_metric", "(ValueError: Could not interpret metric identifier"),
        ("a_class", "returned the class Nested: return a keras.Model"),
        ("without_call", "NoCall has a train_step of its own"),
        ("own_evaluation", "OwnEvaluation has a test_step of its own"),
        ("colorful", "failed (ValueError: bold words): correct it"),
        ("with_states", "the layer 'kept' keeps a state for each row of a batch"),
        ("complex_weight", "of complex64, and norms, sums and losses here are of real"),
        ("own_results", "OwnResults has a get_metrics_result of its own"),
        ("plain_variable", "make it with add_weight(trainable=False)"),
        ("plain_variable_of_a_metric", "or add_variable of the metric"),
        ("numbers_of_batches", "whose first axis is not that of the examples"),
        ("outer_variable", "the variable 'calls' of shape () is assigned in a step"),
    ],
)
def test_a_model_is_refused(
    name: str, words: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        capfd, tmp_path, f"--model={UNFIT}:{name}", f"--dataset={MADE}:arrays"
    )
    assert words in line


def test_ids_of_one_of_several_outputs_are_checked(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        capfd,
        tmp_path,
        f"--model={MADE}:two_in_two_out",
        f"--dataset={UNFIT}:two_kinds_with_more_classes",
    )
    assert "a label of output 'kind' that is 3, and the model has 3 outputs" in line


def test_shapes_of_labels_that_do_not_fit_the_outputs_are_named(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        capfd,
        tmp_path,
        f"--model={UNFIT}:three_numbers",
        f"--dataset={UNFIT}:labels_of_two_numbers",
    )
    assert "labels of shape [n, 2] and outputs of shape [n, 3] (Incompatible" in line
    assert "{{function_node" not in line
    assert "[Op:" not in line


def test_the_cause_of_an_error_in_a_layer_is_not_cut_off(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keras puts it after the names of all layers around it."""
    data = f"--dataset={MADE}:arrays"
    line = refused(capfd, tmp_path, f"--model={MADE}:two_in_two_out", data)
    assert "but it received 1 input tensors" in line


def test_a_fixed_number_of_rows_is_no_mere_error_of_the_layer() -> None:
    words = "take its size from the inputs"
    with pytest.raises(UsageError, match=words), wrap_user_errors("--script=a.py"):
        tf.reshape(tf.zeros([4, 4]), [8, 2, 2])
    with (
        tf.Graph().as_default(),
        pytest.raises(UsageError, match=words),
        wrap_user_errors("--script=a.py"),
    ):
        tf.reshape(tf.zeros([4, 4]), [8, 2, 2])


def test_a_size_that_no_trace_knows_has_the_same_remedy() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def sized(inputs: tf.Tensor) -> tf.Tensor:
        return tf.random.normal((inputs.shape[0], 2))

    words = r"by keras\.ops\.shape\(inputs\)\[0\]"
    with pytest.raises(UsageError, match=words), wrap_user_errors("--script=a.py"):
        sized(tf.zeros([4, 4]))


def test_only_shapes_are_blamed_on_the_parts_of_a_batch() -> None:
    words = "`loss_weights` must match the number of losses, got 1 and 2."
    with pytest.raises(UsageError) as error, wrap_user_errors("--script=a.py"):
        raise ValueError(words)
    assert str(error.value).endswith("): correct it; --verbose shows where.")


def test_a_model_of_the_project_is_not_given_strings(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(capfd, tmp_path, "--model=mlp", f"--dataset={UNFIT}:strings")
    assert "returned strings, and models of this project take real" in line


def test_labels_that_are_read_later_end_the_run_in_a_line(
    tmp_path: pathlib.Path,
) -> None:
    done = run(
        *(f"--model={MADE}:subclassed", f"--run_dir={tmp_path / 'run'}"),
        *(f"--dataset={UNFIT}:read_with_more_classes", "--train_steps=3"),
    )
    assert done.returncode == 2, done.stderr
    assert "the data has a label that is" in done.stderr
    assert "Traceback" not in done.stderr


def write_settings(folder: pathlib.Path, **settings: str) -> None:
    (folder / "keras.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        (["--strategy=one_device"], "environment"),
        (["--strategy=one_device"], "file"),
        (["--strategy=multi_worker_mirrored"], "file"),
        (["--mode=verify", "--strategies=tower"], "environment"),
        (["--mode=devices"], "file"),
    ],
)
def test_another_backend_of_keras_is_refused_at_once(
    flags: list[str], source: str, tmp_path: pathlib.Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    variables = {"KERAS_HOME": str(home)}
    if source == "environment":
        variables["KERAS_BACKEND"] = "jax"
    else:
        write_settings(home, backend="jax")
    given = [] if "--mode=devices" in flags else [f"--run_dir={tmp_path / 'run'}"]
    done = run(*flags, *given, folder=ROOT, **variables)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "jax, and this project distributes with TensorFlow" in line
    assert "KERAS_BACKEND=tensorflow" in line
    assert not (tmp_path / "run").exists()


def test_what_is_said_of_the_backend_helps(tmp_path: pathlib.Path) -> None:
    write_settings(tmp_path, backend="jax")
    settled = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "tensorflow"}
    assert run("--mode=devices", folder=ROOT, **settled).returncode == 0


def test_a_user_without_a_home_has_no_settings_of_keras(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    # As in a container, whose user may be a number without a name.
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", find_nobody)
    check_backend({})


def test_settings_that_keras_refuses_are_named(tmp_path: pathlib.Path) -> None:
    write_settings(tmp_path, floatx="float12")
    done = run("--mode=devices", KERAS_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    # After TensorFlow's own log, which is shown when its import fails.
    line = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert f"Keras do not accept {tmp_path / 'keras.json'}" in line
