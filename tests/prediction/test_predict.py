"""--mode=predict as a user runs it."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest

from tests import processes

SCHEMA = json.loads((processes.ROOT / "docs/predict.schema.json").read_text("utf-8"))
SMALL = ("--model=mlp", "--hidden_units=8", "--train_steps=20")


@pytest.mark.slow
def test_strategies_of_one_process_and_of_several(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "predicted"
    done = processes.run(
        "--mode=predict",
        "--strategies=mirrored,multi_worker_mirrored",
        "--replicas=2,64,512",
        "--bandwidth_gbit=1",
        "--latency_microseconds=200",
        f"--run_dir={folder}",
        *SMALL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "predict.json").read_text("utf-8"))
    jsonschema.validate(found, SCHEMA)
    steps = {
        (p["strategy"], p["num_replicas"]): p["step_milliseconds"]
        for p in found["predictions"]
    }
    assert set(steps) == {
        (strategy, count)
        for strategy in ("mirrored", "multi_worker_mirrored")
        for count in (2, 64, 512)
    }
    # 126 messages of 0.2 ms one after another.
    assert steps["multi_worker_mirrored", 64] > 126 * 0.2
    # 64 examples are not enough for 512 replicas.
    assert steps["multi_worker_mirrored", 512] is steps["mirrored", 512] is None
    assert "512 replicas: none: they need --global_batch_size=512" in done.stdout
    assert "mirrored: one process" in done.stdout
    (ring,) = (s for s in found["strategies"] if s["exchange"]["kind"] == "ring")
    # 64 inputs, 8 hidden units, 10 classes, in four bytes each.
    assert ring["exchange"]["gradient_bytes"] == 4 * (64 * 8 + 8 + 8 * 10 + 10)
    assert [m["num_replicas"] for m in ring["measured"]] == [2, 2, 3, 3, 4, 4]
    assert max(map(len, done.stdout.replace(str(tmp_path), "").splitlines())) <= 130


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
