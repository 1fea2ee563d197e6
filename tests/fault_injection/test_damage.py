"""Tests of damage to the newest checkpoint, with the whole program.

tests/trainers/run_dir/test_checkpoints.py has many more kinds, without a whole run.
"""

import pathlib
import random

import pytest
import tensorflow as tf

from tests import processes
from tests.fault_injection.scenarios.damage import DATA, FLAGS, KINDS, assert_falls_back
from tests.markers import chosen
from trainers.main import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    processes.train(folder, *FLAGS)
    return folder


def test_there_are_as_many_kinds_as_the_documents_say() -> None:
    assert len(KINDS) == 11


# What a run says and does is the same for every kind of damage that is found.
@pytest.mark.parametrize(
    "kind", chosen(KINDS, [f"{DATA} cut off", "data of the one before"])
)
def test_every_kind_is_one_line_and_the_run_goes_on_from_the_one_before(
    kind: str,
    trained: pathlib.Path,
    tmp_path: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Many runs in one process trace often, and TensorFlow would warn of that.
    monkeypatch.setattr(tf.get_logger(), "disabled", True)

    def resume(*flags: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["main", *flags])
        return code, *capfd.readouterr()

    assert_falls_back(kind, trained, tmp_path / "run", random.Random(0), resume)
