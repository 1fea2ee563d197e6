"""Tests of workers that read a stream by example or by file."""

import pathlib

import pytest

from tests.processes import result_of
from tests.trainers.experiments.verify.mutated_projects import verify
from tests.trainers.inputs.record_factory import write_folder

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# 23 examples in batches of 9: the third batch of an epoch has 5, by example.
SIZES = (8, 4, 11)


def verify_stream(folder: pathlib.Path, sharding: str) -> tuple[str, dict, dict]:
    """Returns the output, the workers' entry in the report, and their run's traits."""
    data = write_folder(folder / "data", SIZES)
    done, found = verify(
        folder,
        "--strategies=multi_worker_mirrored",
        f"--sharding={sharding}",
        f"--data_path={data}",
        f"--eval_data_path={data}",
        "--dataset=tfrecord",
        "--num_classes=2",
        "--model=mlp",
        "--hidden_units=8",
        "--dtype=float64",
        "--optimizer=sgd",
        "--learning_rate=0.0001",
        "--global_batch_size=9",
        # Four steps reach the second epoch. They are few because features up to 22
        # let rounding grow fast.
        "--train_steps=4",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (entry,) = found["strategies"]
    traits = result_of(folder / entry["run"])["traits"]
    return done.stdout, entry, traits


def test_by_example_workers_train_as_one_device_does(tmp_path: pathlib.Path) -> None:
    _, entry, traits = verify_stream(tmp_path, "example")
    assert entry["verdict"] in ("identical", "equivalent")
    assert traits["matches_one_device"] is True


@pytest.mark.exhaustive
def test_by_file_they_do_not_and_nobody_says_so(tmp_path: pathlib.Path) -> None:
    printed, entry, traits = verify_stream(tmp_path, "file")
    assert entry["verdict"] == "not comparable"
    assert "--sharding=file gives every process files of its own" in printed
    assert traits["matches_one_device"] is False
