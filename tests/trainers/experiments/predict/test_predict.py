"""--mode=predict as a user runs it."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest

from tests import processes
from tests.markers import further

SCHEMA = json.loads((processes.ROOT / "docs/predict.schema.json").read_text("utf-8"))
SMALL = ("--model=mlp", "--hidden_units=8", "--train_steps=20")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("mirrored", "reduce_to_one"), further("multi_worker_mirrored", "ring")],
)
def test_short_runs_here_predict_a_larger_cluster(
    strategy: str, kind: str, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "predicted"
    words = processes.command(
        "--mode=predict",
        f"--strategies={strategy}",
        "--replicas=2,64,512",
        "--set=prediction.bandwidth_gbit=1",
        "--set=prediction.latency_microseconds=20000",
        f"--run_dir={folder}",
        *SMALL,
    )
    done = processes.run_patiently(words, processes.PREDICT_PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "predict.json").read_text("utf-8"))
    jsonschema.validate(found, SCHEMA)
    two, many, too_many = (p["step_milliseconds"] for p in found["predictions"])
    # Messages one after another, of 20 ms each.
    messages = {"reduce_to_one": (2, 2), "ring": (2, 126)}[kind]
    assert 20 * messages[0] < two < 40 * messages[0]
    assert 20 * messages[1] < many
    # 64 examples are not enough for 512 replicas.
    assert too_many is None
    assert "512 replicas: none: they need --global_batch_size=512" in done.stdout
    (fitted,) = found["strategies"]
    assert fitted["exchange"]["kind"] == kind
    # 64 inputs, 8 hidden units, 10 classes, in four bytes each.
    assert fitted["exchange"]["gradient_bytes"] == 4 * (64 * 8 + 8 + 8 * 10 + 10)
    assert [m["num_replicas"] for m in fitted["measured"]] == [2, 2, 3, 3, 4, 4, 4]
    alone = found["one_device"]["measured"]
    assert [m["examples"] for m in alone] == [8, 16, 32, 64, 8]
    # Of a model this small the ballast is the least there is, a mebibyte.
    own = fitted["exchange"]["gradient_bytes"]
    heavy = own + 2**20
    sizes = [m["gradient_bytes"] for m in fitted["measured"]]
    assert sizes == pytest.approx([own, own, own, heavy, own, own, heavy], abs=1)
    assert [m["has_ballast"] for m in fitted["measured"]] == [s > own for s in sizes]
    assert [m["has_ballast"] for m in alone] == [*[False] * 4, True]


@pytest.mark.slow
def test_a_run_that_is_refused_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """What only a run finds out: there is no such archive."""
    folder = tmp_path / "predicted"
    done = processes.run(
        "--mode=predict",
        "--strategies=mirrored",
        "--dataset=cifar10",
        f"--data_path={tmp_path / 'missing'}",
        f"--run_dir={folder}",
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()
