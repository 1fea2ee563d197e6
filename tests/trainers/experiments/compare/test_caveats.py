"""Caveats at the beginning of a report, before its verdicts."""

from __future__ import annotations

import pytest

from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.compare.caveats import remarks_on_batches


@pytest.mark.parametrize("sharding", ["exact", "example", "file"])
def test_arms_whose_processes_read_files_of_their_own_are_named(sharding: str) -> None:
    """Compares arms of equal settings whose global batches differ."""
    shared = Config().replace(
        dataset="tfrecord", data_path="a", eval_data_path="b", sharding=sharding
    )
    names = ("one_device", "mirrored", "multi_worker_mirrored")
    arms = [Arm(name=name, config=shared.replace(strategy=name)) for name in names]
    remarks = remarks_on_batches(arms)
    if sharding != "file":
        assert remarks == []
        return
    (remark,) = remarks
    assert "the processes of multi_worker_mirrored read files of their own" in remark
