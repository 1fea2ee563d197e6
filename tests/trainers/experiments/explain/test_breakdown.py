"""Shares of the time and causes, from made-up phases of steps."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from trainers.config.config import Config
from trainers.experiments.explain.breakdown import PHASES, WITHIN_A_STEP, breakdown_of
from trainers.experiments.explain.causes import Facts, find_causes
from trainers.experiments.explain.report import Report, trace_of

# Steps of one task: seconds of input, compute of each replica, exchange, and update.
Row = tuple[float, Sequence[float], float, float]

NUM_STEPS = 10
WALL_SECONDS = 2.0
RESULT = {
    "strategy": "mirrored",
    "num_replicas": 2,
    "compilation": {"scope": "nothing"},
    "communication": {"bytes_per_step_per_replica": 1000},
    "pipeline": None,
    "hardware": {},
}


def task_of(name: str, row: Row, clock: float = 0.0, **other: Any) -> dict[str, Any]:
    """Returns the content of the file of a task whose steps are all equal.

    Args:
      name: Name of the task.
      row: Seconds of each step.
      clock: Seconds by which the task's clock is ahead.
      other: Further values of the file, or of its seconds.
    """
    waited, computes, exchange, update = row
    reduced = waited + max(computes) + exchange
    length = reduced + update
    start = clock + length * np.arange(NUM_STEPS)
    computed = start[:, np.newaxis] + waited + np.array(computes)
    seconds = {"summary": 0.0, "eval": 0.0, "checkpoint": 0.0, "chief": 0.0}
    seconds |= {"cpu": 1.0, "cpu_wait": 0.0, "num_traces_since": 0.0}
    seconds |= dict.fromkeys(("in_steps", "in_kept_steps"), NUM_STEPS * length)
    seconds |= {name: other.pop(name) for name in [*seconds] if name in other}
    return {
        "task": name,
        "wall_seconds": WALL_SECONDS,
        "num_steps": NUM_STEPS,
        "seconds": seconds,
        "num_retracing_warnings": 0,
        "num_operations": 1000,
        "num_variables": 8,
        "variable_bytes": 1 << 20,
        "num_machine_cores": 2,
        "blocks": [],
        "steps": {
            "worker": [name] * NUM_STEPS,
            "start": start.tolist(),
            "input": [waited] * NUM_STEPS,
            "prefetch": [0.0] * NUM_STEPS,
            "stop": (start + length).tolist(),
            "computed": computed.tolist(),
            "reduced": (start + reduced).tolist(),
        },
        **other,
    }


def workers(*tasks: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["task"]: task for task in tasks}


def facts_of(
    tasks: dict[str, dict[str, Any]], result: Any = None, **flags: Any
) -> Facts:
    return Facts(
        breakdown=breakdown_of(tasks),
        config=Config().replace(**flags),
        result={**RESULT, **(result or {})},
        measured={"other_busy_cores": 1.5},
    )


def names_of(facts: Facts) -> list[str]:
    return [cause.name for cause in find_causes(facts)]


EQUAL = (0.001, [0.15], 0.02, 0.01)


def test_tasks_that_keep_other_numbers_of_steps_have_the_time_of_all() -> None:
    """One task has kept a slow step more, which counts in the time of all steps."""
    row: Row = (0.01, [0.02], 0.03, 0.01)
    slow = task_of("chief", (0.1, [0.2], 0.3, 0.1), clock=-0.7)
    longer = task_of("worker-1", row)
    longer["steps"] = {
        name: [*(longer if name == "worker" else slow)["steps"][name][:1], *values]
        for name, values in longer["steps"].items()
    }
    all_seconds = NUM_STEPS * 0.07 + 0.7
    longer["seconds"].update(in_steps=all_seconds, in_kept_steps=all_seconds)
    found = breakdown_of({"chief": task_of("chief", row), "worker-1": longer})
    _, replica = found.replicas
    within = sum(replica.seconds[phase] for phase in WITHIN_A_STEP)
    assert within == pytest.approx(all_seconds)


def test_the_last_to_arrive_waits_for_nobody_and_clocks_are_not_compared() -> None:
    slow = task_of("worker-1", (0.0, [0.150], 0.01, 0.01), clock=1e6)
    fast = task_of("worker-0", (0.0, [0.050], 0.11, 0.01))
    breakdown = breakdown_of(workers(fast, slow))
    first, second = breakdown.replicas
    assert first.seconds["wait"] == pytest.approx(NUM_STEPS * 0.1)
    assert second.seconds["wait"] == pytest.approx(0, abs=1e-6)
    # The rest of the exchange is the wire, the same for both.
    for replica in breakdown.replicas:
        assert replica.seconds["wire"] == pytest.approx(NUM_STEPS * 0.01, rel=1e-6)
        assert sum(replica.seconds.values()) / WALL_SECONDS == pytest.approx(1)
    assert breakdown.slowest is second


def test_replicas_of_one_process_share_their_sum() -> None:
    row = (0.01, [0.05, 0.09], 0.02, 0.01)
    breakdown = breakdown_of(workers(task_of("chief-0", row)))
    fast, slow = breakdown.replicas
    assert [r.name for r in breakdown.replicas] == [
        *("chief-0 replica 0", "chief-0 replica 1")
    ]
    assert fast.seconds["wait"] == pytest.approx(NUM_STEPS * 0.04)
    assert slow.seconds["wait"] == pytest.approx(0)
    assert breakdown.slowest is slow


def test_a_wait_for_later_examples_is_input_and_no_update() -> None:
    task = task_of("chief-0", (0.0, [0.05], 0.0, 0.06))
    task["steps"]["prefetch"][-1] = 0.05
    (replica,) = breakdown_of(workers(task)).replicas
    assert replica.seconds["input"] == pytest.approx(0.05)
    assert replica.seconds["update"] == pytest.approx(NUM_STEPS * 0.06 - 0.05)


def test_steps_that_are_not_kept_count_by_their_time() -> None:
    """They may have been faster than the newest ones, which are kept."""
    row = (0.0, [0.05, 0.09], 0.0, 0.01)
    task = task_of("chief-0", row, in_steps=1.5, num_steps=100 * NUM_STEPS)
    breakdown = breakdown_of(workers(task))
    fast, slow = breakdown.replicas
    # Of the 0.1 s of a step.
    assert fast.seconds["compute"] == pytest.approx(0.5 * 1.5)
    assert fast.seconds["wait"] == pytest.approx(0.4 * 1.5)
    assert breakdown.caused_wait_seconds == pytest.approx([0.0, 0.4 * 1.5])
    assert [fast.share(*PHASES), slow.share(*PHASES)] == pytest.approx([1, 1])


# Cause, tasks of the run, content of its result, and settings.
PLANTED: Any = [
    (
        "slow_worker",
        [
            ("worker-0", (0.0, [0.05], 0.11, 0.01)),
            ("worker-1", (0, [0.15], 0.01, 0.01)),
        ],
    ),
    (
        "slow_input",
        [("worker-0", (0.0, [0.05], 0.11, 0.01)), ("worker-1", (0.1, [0.05], 0.01, 0))],
    ),
    # It computes three times as long too, which is a tenth of what others wait for.
    (
        "slow_input",
        [
            ("worker-0", (0.0, [0.005], 0.12, 0.01)),
            ("worker-1", (0.1, [0.015], 0.01, 0.01)),
        ],
    ),
]


@pytest.mark.parametrize(("cause", "tasks"), PLANTED)
def test_a_cause_of_two_workers_is_named_with_its_task(cause: str, tasks: Any) -> None:
    facts = facts_of(workers(*(task_of(*task) for task in tasks)))
    first, *others = find_causes(facts)
    assert (first.name, others) == (cause, [])
    assert "worker-1" in first.words


SMALL = {"num_operations": 100_000}


@pytest.mark.parametrize(
    ("cause", "of_task", "result", "flags"),
    [
        ("retracing", {"num_retracing_warnings": 1}, {}, {}),
        ("retracing", {"num_traces_since": 1.0}, {}, {}),
        ("crowded_cores", {"cpu_wait": 1.5}, {}, {}),
        ("tiny_batch", SMALL, {}, {"global_batch_size": 4}),
        ("many_tiny_tensors", {**SMALL, "num_variables": 200}, {}, {}),
        ("frequent_summaries", {"summary": 0.6}, {}, {"histogram_every_steps": 1}),
        ("frequent_summaries", {"summary": 0.6}, {}, {"summary_every_steps": 1}),
        (
            "slow_disk",
            {"checkpoint": 1.5, "blocks": [{"kind": "checkpoint", "seconds": 1.5}]},
            *({}, {}),
        ),
        (
            "uneven_stages",
            *({}, {"pipeline": {"stages": [{"idle_share": 0}, {"idle_share": 0.9}]}}),
            {},
        ),
    ],
)
def test_a_cause_is_named(cause: str, of_task: Any, result: Any, flags: Any) -> None:
    task = task_of("chief-0", EQUAL, **of_task)
    (found,) = find_causes(facts_of(workers(task), result, **flags))
    assert found.name == cause
    assert found.remedy


@pytest.mark.filterwarnings("error")
def test_a_single_stage_is_compared_with_no_other() -> None:
    result = {"pipeline": {"stages": [{"idle_share": 0.1}]}}
    assert find_causes(facts_of(workers(task_of("chief-0", EQUAL)), result)) == []


def test_a_slow_wire_is_named_by_its_bytes_a_second() -> None:
    tasks = workers(*(task_of(f"worker-{i}", (0, [0.01], 0.15, 0)) for i in range(2)))
    few = {"communication": {"bytes_per_step_per_replica": 1000}}
    many = {"communication": {"bytes_per_step_per_replica": 4_000_000}}
    fast = {"communication": {"bytes_per_step_per_replica": 40_000_000}}
    assert names_of(facts_of(tasks, many)) == ["slow_wire"]
    assert names_of(facts_of(tasks, few)) == []
    assert names_of(facts_of(tasks, fast)) == []


@pytest.mark.parametrize(
    ("of_task", "result", "flags"),
    [
        ({}, {}, {}),
        # Few examples, and steps that compute much for each.
        ({}, {}, {"global_batch_size": 4}),
        # Many small operations of one program of XLA.
        (SMALL, {"compilation": {"scope": "the loop"}}, {"global_batch_size": 4}),
        ({"summary": 0.6}, {}, {}),
        ({"summary": 0.1}, {}, {"histogram_every_steps": 1}),
        ({"cpu_wait": 0.2}, {}, {}),
        # Often saved, and fast.
        (
            {"checkpoint": 1.5, "blocks": [{"kind": "checkpoint", "seconds": 0.2}]},
            *({}, {}),
        ),
        (
            *({}, {"pipeline": {"stages": [{"idle_share": 0}, {"idle_share": 0.6}]}}),
            {},
        ),
    ],
)
def test_no_cause_is_named_without_one(of_task: Any, result: Any, flags: Any) -> None:
    facts = facts_of(workers(task_of("chief-0", EQUAL, **of_task)), result, **flags)
    assert names_of(facts) == []
    verdict = Report(facts, []).verdict()
    assert verdict.startswith("no cause stands out; the most, ")


def test_evaluation_hides_no_cause() -> None:
    task = task_of("chief-0", (0.02, [0.02], 0, 0), eval=1.5)
    assert names_of(facts_of(workers(task))) == ["slow_input"]


def test_workers_that_take_turns_to_be_last_are_no_cause() -> None:
    fast, slow = (0.0, [0.02], 0.14, 0.01), (0.0, [0.15], 0.01, 0.01)
    tasks = [task_of("worker-0", fast), task_of("worker-1", slow)]
    assert names_of(facts_of(workers(*tasks))) == ["slow_worker"]
    computed = [np.array(task["steps"]["computed"]) for task in tasks]
    # In three of ten steps the other one is last.
    for own, other in ((0, 1), (1, 0)):
        mixed = computed[own].copy()
        mixed[:3] = computed[other][:3]
        tasks[own]["steps"]["computed"] = mixed.tolist()
    assert names_of(facts_of(workers(*tasks))) == []


def test_a_trace_shows_the_same_times() -> None:
    task = task_of("chief-0", (0.01, [0.05, 0.09], 0.02, 0.01))
    block = {"kind": "checkpoint", "start": 0.5, "seconds": 0.25}
    breakdown = breakdown_of(workers({**task, "blocks": [block]}))
    trace = trace_of(breakdown)
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    (saved,) = (event for event in bars if event["cat"] == "between")
    assert (saved["ts"], saved["dur"]) == pytest.approx((0.5e6, 0.25e6))
    # The phases of a replica follow each other, with no time between and none twice.
    steps = [event for event in bars if event["cat"] == "step" and event["tid"] == 0]
    steps.sort(key=lambda event: event["ts"])
    for one, after in itertools.pairwise(steps):
        assert one["ts"] + one["dur"] == pytest.approx(after["ts"], abs=1)
    shown = sum(event["dur"] for event in bars if event["cat"] == "step")
    kept = sum(r.seconds[p] for r in breakdown.replicas for p in WITHIN_A_STEP)
    assert shown == pytest.approx(1e6 * kept)


def test_the_table_fits_into_80_columns() -> None:
    between: dict[str, Any] = dict.fromkeys(("summary", "eval", "chief"), 0.2)
    row = (0.01, [0.05], 0.02, 0.02)
    tasks = [
        task_of(f"worker-{i}", row, checkpoint=0.2, **dict(between)) for i in range(2)
    ]
    lines = Report(facts_of(workers(*tasks)), []).lines()
    table = [line for line in lines if line.startswith("worker")]
    assert len(table) == 2
    assert all(len(line) <= 80 for line in table)


def test_workers_of_one_leader_have_shares_each() -> None:
    task = task_of("chief-0", (0.0, [0.12], 0.0, 0.01))
    task["steps"]["worker_seconds"] = [[0.01, 0.04, 0.02, 0.08]] * NUM_STEPS
    fast, slow = breakdown_of(workers(task)).replicas
    assert [fast.name, slow.name] == ["worker-0", "worker-1"]
    assert fast.seconds["input"] == pytest.approx(NUM_STEPS * 0.01)
    assert fast.seconds["wait"] == pytest.approx(NUM_STEPS * 0.05)
    assert slow.seconds["wire"] == pytest.approx(NUM_STEPS * 0.02)


def test_workers_that_do_not_wait_are_told_apart_by_their_steps() -> None:
    task = task_of("chief-0", EQUAL)
    task["steps"]["worker"] = ["tower-0", "tower-1"] * (NUM_STEPS // 2)
    replicas = breakdown_of(workers(task)).replicas
    assert [replica.name for replica in replicas] == ["tower-0", "tower-1"]
    for replica in replicas:
        assert replica.seconds["wait"] == 0
        assert replica.seconds["compute"] == pytest.approx(NUM_STEPS / 2 * 0.15)
