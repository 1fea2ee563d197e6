"""--export writes the model under every strategy, and it can be evaluated."""

import errno
import json
import os
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.embedding import ShardedEmbedding
from strategies.common.errors import UsageError
from tests.markers import further
from tests.processes import NO_EVALUATION, metrics_of, result_of, run, train
from trainers.config.config import Config
from trainers.config.used_settings import check_used
from trainers.main import main
from trainers.run_dir.export import LAST, Exports, read_keras

EXPORT = ("--export=keras,saved_model", "--train_steps=60")
EVERY = ("--eval_every_steps=20", "--checkpoint_every_steps=20")


def images() -> np.ndarray:
    return np.random.default_rng(0).random((3, 8, 8, 1), np.float32)


def served(folder: pathlib.Path, inputs: np.ndarray) -> np.ndarray:
    """Returns the predictions of a SavedModel, as a server runs it."""
    loaded = tf.saved_model.load(str(folder))
    return loaded.serve(inputs).numpy()


def evaluated(run_dir: pathlib.Path, *flags: str) -> dict[str, float]:
    done = run("--mode=evaluate", f"--run_dir={run_dir}", *flags)
    assert done.returncode == 0, done.stderr
    return {n: float(v) for n, v in re.findall(r"(\w+) (\d+\.\d+)", done.stdout)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "mirrored",
        further("tower"),
        further("model_parallel"),
        further("multi_worker_mirrored"),
        further("parameter_server"),
    ],
)
def test_the_last_and_the_best_model_of_a_run(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    given = (f"--strategy={strategy}", "--model=mlp", "--learning_rate=0.01")
    result = train(folder, *given, *EXPORT, *EVERY)
    losses = {
        row["step"]: row["eval_loss"]
        for row in metrics_of(folder)
        if "eval_loss" in row
    }
    assert list(losses) == [20, 40, 60]
    assert {path.name for path in (folder / "export").iterdir()} == {
        *("best.keras", "best_saved_model", "last.keras", "last_saved_model")
    }
    for name in ("best", "last"):
        model = keras.saving.load_model(folder / "export" / f"{name}.keras")
        predicted = model(images()).numpy()
        other = served(folder / "export" / f"{name}_saved_model", images())
        # Equal here; the graph of a SavedModel may get other kernels of float32.
        np.testing.assert_allclose(other, predicted, rtol=1e-5, atol=1e-6)
    place = folder / "export"
    last = evaluated(folder, f"--exported_model={place / 'last.keras'}")
    best = evaluated(folder, f"--exported_model={place / 'best.keras'}")
    # The line has four digits.
    assert last["loss"] == pytest.approx(result["final"]["eval_loss"], abs=1e-4)
    assert best["loss"] == pytest.approx(min(losses.values()), abs=1e-4)
    assert evaluated(folder) == pytest.approx(last, abs=1e-4)


def test_the_best_is_kept_when_a_run_is_continued(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    # A compilation takes longer than these steps.
    quick = ("--strategy=one_device", "--model=mlp", "--jit_compile=off")
    given = (*quick, "--export=keras", *EVERY)
    train(folder, *given, "--train_steps=40")
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    # As if it had been better than it will ever be again.
    for row in rows:
        row.update({"eval_loss": 0.0} if "eval_loss" in row else {})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    best = folder / "export" / "best.keras"
    before = best.read_bytes()
    train(folder, *given, "--train_steps=60", "--resume=auto")
    assert best.read_bytes() == before
    assert (folder / "export" / "last.keras").is_file()


def test_a_run_whose_last_export_does_not_fit_has_failed_and_can_go_on(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(exports: Exports, name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "run"
    given = (
        *("", "--model=mlp", "--jit_compile=off", "--export=keras"),
        *("--train_steps=3", f"--run_dir={folder}"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(Exports, "write", fail)
        assert main(given) == 2
    *_, line = capfd.readouterr().err.splitlines()
    assert line == (
        f"error: {folder}/export/last could not be written (No space left on device): "
        "free space on its disk, then continue with --resume=auto."
    )
    assert result_of(folder)["status"] == "failed"
    assert main([*given, "--resume=auto"]) == 0
    files = sorted(path.name for path in (folder / "export").iterdir())
    assert "last.keras" in files
    line = f"export    {folder}/export: {', '.join(files)}\n"
    assert line in capfd.readouterr().out


def test_an_interrupted_last_export_is_made_when_the_run_is_continued(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(exports: Exports, name: str) -> None:
        if name == LAST:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    given = (
        *("", "--model=mlp", "--jit_compile=off", "--export=keras"),
        *("--train_steps=3", f"--run_dir={folder}", *NO_EVALUATION),
    )
    with monkeypatch.context() as patch:
        patch.setattr(Exports, "write", interrupt)
        assert main(given) == 130
    assert result_of(folder)["status"] == "preempted"
    assert main([*given, "--resume=auto"]) == 0
    assert result_of(folder)["status"] == "completed"
    assert (folder / "export" / "last.keras").is_file()


def test_a_table_of_embeddings_is_read_with_its_layer(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    clicks = (
        "--model=wide_embedding",
        "--dataset=clicks",
        "--set=data.num_categories=20",
    )
    # The best one is exported after each evaluation.
    once = "--eval_every_steps=none"
    train(folder, "--strategy=one_device", *clicks, *EXPORT, once)
    model = keras.saving.load_model(
        folder / "export" / "last.keras",
        custom_objects={"ShardedEmbedding": ShardedEmbedding},
    )
    ids = np.arange(16, dtype=np.int64).reshape(2, 8)
    other = served(folder / "export" / "last_saved_model", ids)
    # Equal here; the graph of a SavedModel may get other kernels of float32.
    np.testing.assert_allclose(other, model(ids).numpy(), rtol=1e-5, atol=1e-6)


def small() -> keras.Model:
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])


def test_a_file_of_another_model_is_refused(tmp_path: pathlib.Path) -> None:
    Exports(tmp_path / "export", ["keras"], small(), small).write("last")
    other = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    with pytest.raises(UsageError, match="is of another model than --run_dir"):
        read_keras(str(tmp_path / "export" / "last.keras"), other)
    with pytest.raises(UsageError, match=r"is no \.keras file"):
        read_keras(str(tmp_path / "export"), other)
    with pytest.raises(UsageError, match="cannot be read"):
        read_keras(str(tmp_path / "missing.keras"), other)


def test_present_values_are_written_each_time(tmp_path: pathlib.Path) -> None:
    model = small()
    exports = Exports(tmp_path / "export", ["keras"], model, small)
    exports.write("best")
    model.weights[0].assign_add(np.ones([4, 2], np.float32))
    exports.write("last")
    read = [
        keras.saving.load_model(tmp_path / "export" / f"{name}.keras").weights[0]
        for name in ("best", "last")
    ]
    # Weights below 2 have rounding errors of 1.2e-7 in float32.
    np.testing.assert_allclose(read[1].numpy() - read[0].numpy(), 1, rtol=1e-6)
    np.testing.assert_array_equal(read[1].numpy(), model.weights[0].numpy())


def test_an_exported_model_is_for_evaluation() -> None:
    with pytest.raises(UsageError, match="is not used by --mode=train"):
        check_used(Config().replace(exported_model="last.keras"))
