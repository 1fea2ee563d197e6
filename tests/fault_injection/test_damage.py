"""Tests of damage to the newest checkpoint, with the whole program.

tests/trainers/run_dir/test_checkpoints.py has many more kinds, without a whole run.
"""

from __future__ import annotations

import pathlib
import random

import pytest
import tensorflow as tf

from tests.fault_injection.scenarios.damage import FLAGS, KINDS, assert_falls_back
from trainers.main import main


def test_every_kind_is_one_line_and_the_run_goes_on_from_the_one_before(
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

    trained = tmp_path / "trained"
    assert main(["main", f"--run_dir={trained}", *FLAGS]) == 0
    assert len(KINDS) == 11
    for kind in KINDS:
        run = tmp_path / kind.replace(" ", "-")
        assert_falls_back(kind, trained, run, random.Random(0), resume)
