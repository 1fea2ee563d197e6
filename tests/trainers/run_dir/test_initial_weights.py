"""--initial_weights: a run begins with the weights of a Keras file."""

import pathlib

import pytest

from tests.markers import further
from tests.processes import NO_EVALUATION, run, train

# A compilation takes longer than these steps.
MODEL = ("--model=mlp", "--hidden_units=8", "--jit_compile=off")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    folder = tmp_path_factory.mktemp("initial_weights") / "run"
    export = ("--export=weights,keras", "--train_steps=5")
    result = train(folder, "--strategy=one_device", *MODEL, *NO_EVALUATION, *export)
    return folder / "export", result["weights_sha256"]


# --mode=evaluate reads whole models as well, in test_export.py.
@pytest.mark.parametrize("file", ["last.weights.h5", further("last.keras")])
@pytest.mark.parametrize(
    "strategy",
    [
        ("--strategy=mirrored",),
        further(("--strategy=tower",)),
        further(("--strategy=model_parallel",)),
        further(("--strategy=multi_worker_mirrored", "--num_workers=2")),
        further(("--strategy=parameter_server", "--num_workers=2", "--num_ps=2")),
    ],
)
def test_a_run_begins_with_the_weights_of_a_file(
    trained: tuple[pathlib.Path, str],
    strategy: tuple[str, ...],
    file: str,
    tmp_path: pathlib.Path,
) -> None:
    exports, digest = trained
    given = (*MODEL, f"--initial_weights={exports / file}", "--train_steps=1")
    result = train(tmp_path / "run", *strategy, *NO_EVALUATION, *given)
    assert result["initial_weights_sha256"] == digest
    assert result["weights_sha256"] != digest


@pytest.mark.parametrize(
    ("file", "flags", "words"),
    [
        ("missing.keras", MODEL, ("missing.keras is no file", "--initial_weights")),
        ("model.h5", MODEL, (".weights.h5", "save_weights")),
        # The layer that does not fit is named.
        ("last.keras", ("--model=mlp", "--hidden_units=9"), ("(64, 9)", "same layers")),
        ("last.weights.h5", ("--model=convnet",), ("same layers",)),
        ("last.keras", ("--model=convnet",), ("same layers",)),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    trained: tuple[pathlib.Path, str],
    file: str,
    flags: tuple[str, ...],
    words: tuple[str, ...],
    tmp_path: pathlib.Path,
) -> None:
    given = (f"--initial_weights={trained[0] / file}", *flags, "--train_steps=1")
    done = run("--strategy=one_device", *given, f"--run_dir={tmp_path / 'run'}")
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert all(word in line for word in words), line
    assert "Warning" not in done.stderr
    assert not (tmp_path / "run").exists()
