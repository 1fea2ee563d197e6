"""Words for the tasks behind. Real runs: tests/fault_injection/test_hangs.py."""

from collections.abc import Mapping

import pytest

from strategies.cluster.activity import Sign
from strategies.cluster.inquiry import Report
from strategies.cluster.probes import PeerState
from strategies.cluster.spec import Cluster
from trainers.fault_tolerance.task_behind import describe_tasks_behind

WAITS = Report(step=30, doing="train", idle_seconds=12.2)
CLUSTER = Cluster(
    job="worker", addresses={"worker": tuple(f"host{i}:1" for i in range(7))}
)


def busy(sign: Sign, doing: str = "train") -> Report:
    return Report(
        step=30, doing=doing, idle_seconds=12.2, sign=sign, where="f (a.py:3)"
    )


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (
            WAITS,
            {3: busy(Sign.INPUT)},
            "worker-3 at host3:1, which for 12 s has been training, in its input: "
            "Python, f (a.py:3)",
        ),
        (
            busy(Sign.MAIN_THREAD, "running callbacks"),
            {},
            "worker-0 at host0:1, which for 12 s has been running callbacks, in f "
            "(a.py:3)",
        ),
        # What does not answer is surer than what may wait for it, and Python than CPU.
        (
            busy(Sign.MAIN_THREAD),
            {2: PeerState.SILENT},
            "worker-2 at host2:1, which does not answer: it is suspended, or its "
            "network is cut off",
        ),
        (
            busy(Sign.COMPUTES),
            {4: busy(Sign.DISK, "checkpoint")},
            "worker-4 at host4:1, which for 12 s has been saving, waiting for a disk: "
            "f (a.py:3)",
        ),
        (
            busy(Sign.COMPUTES),
            {5: PeerState.SERVING},
            "worker-5 at host5:1, which answers by TCP alone: its Python is blocked, "
            "or a firewall lets no UDP through",
        ),
        (
            WAITS,
            {1: Report(sign=Sign.COMPUTES)},
            "worker-1 at host1:1, which is computing in TensorFlow",
        ),
        (
            WAITS,
            dict.fromkeys(range(1, 7), PeerState.SILENT),
            "worker-0 at host0:1, which reaches no other task: its network is cut off",
        ),
        (
            WAITS,
            {},
            "any task: all wait in TensorFlow, for a message that was lost, or for an "
            "input whose operations wait",
        ),
    ],
)
def test_the_surest_sign_names_the_task(
    own: Report, others: Mapping[int, Report | PeerState], expected: str
) -> None:
    answers = {f"worker-{i}": others.get(i, WAITS) for i in range(1, 7)}
    words = describe_tasks_behind(CLUSTER, own, answers)
    assert words == f"step 31 has not been reached by {expected}"


def test_of_many_tasks_a_few_are_named() -> None:
    answers = {f"worker-{i}": busy(Sign.INPUT) for i in range(1, 7)}
    words = describe_tasks_behind(CLUSTER, WAITS, answers)
    assert "worker-4 at" in words
    assert "worker-5 at" not in words
    assert words.endswith("; and 2 more")


def test_a_run_of_one_process_names_its_own_work() -> None:
    assert describe_tasks_behind(Cluster(), busy(Sign.GRAPH), {}) == (
        "step 31 has not been reached by this run, which for 12 s has been training, "
        "in Python that TensorFlow calls for an input, layer or loss: f (a.py:3)"
    )
