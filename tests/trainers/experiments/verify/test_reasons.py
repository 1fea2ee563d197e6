"""Reasons not to compare a strategy: each belongs to its setting."""

import pathlib
import types
from typing import Any

import pytest

from tests.trainers.experiments.verify.test_diagnosis import STEP, executed
from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.verify.report import _why_not_comparable
from trainers.experiments.verify.verdict import Verdict
from trainers.modes.verify import _find

_FILES = {"dataset": "tfrecord", "data_path": "a", "eval_data_path": "b"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "mirrored"}, "mirrored declares matches_one_device=False"),
        (
            {"strategy": "multi_worker_mirrored", "sharding": "file", **_FILES},
            "--sharding=file",
        ),
        (
            {"strategy": "parameter_server", "update": "sync", "backup_workers": 1},
            "--backup_workers=1",
        ),
        (
            {
                "strategy": "multi_worker_mirrored",
                "num_workers": 2,
                "gradient_compression": "int8",
            },
            "--gradient_compression=int8 sums ",
        ),
    ],
)
def test_the_reason_names_the_setting(settings: dict[str, Any], words: str) -> None:
    arm = Arm(name="subject", config=Config().replace(**settings))
    finding: Any = types.SimpleNamespace(arm=arm)
    assert words in _why_not_comparable(finding)


def test_a_training_that_may_differ_may_not_diverge(tmp_path: pathlib.Path) -> None:
    log = "error: loss is nan at step 7\n"
    subject = executed(tmp_path / "tower", STEP, log, status="diverged")
    config = Config().replace(strategy="tower", update="async")
    runner: Any = None
    found = _find(Arm(name="tower", config=config), subject, subject, runner)
    assert found.verdict is Verdict.FAILED
    assert found.recorded.run.reason == "loss is nan at step 7"
