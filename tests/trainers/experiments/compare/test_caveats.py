"""Caveats at the beginning of a report, before its verdicts."""

import pytest

from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.compare.caveats import remarks_on_batches
from trainers.experiments.compare.controlled_settings import (
    check_configurations,
    differing_settings,
)


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


def test_equal_numbers_of_different_types_do_not_differ() -> None:
    shared = Config().replace(strategy="multi_worker_mirrored")
    arms = [
        Arm(name=str(rate), config=shared.replace(emulated_bandwidth_mbit=rate))
        # A configuration file may have a whole number.
        for rate in (100, 100.0)
    ]
    assert differing_settings(arms) == {}
    check_configurations(arms, ())
