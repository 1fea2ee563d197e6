"""Report of a prediction from made-up measurements."""

import dataclasses
import pathlib

import jsonschema
import pytest

from strategies.gradient_compression.choice import parse_compression
from tests.trainers.experiments.predict.test_performance_model import (
    ASYNCHRONOUS,
    COMPUTE,
    LOCAL,
    RING,
    model_of,
)
from tests.trainers.experiments.predict.test_predict import SCHEMA
from trainers.config.config import Config
from trainers.experiments.predict.communication_model import Exchange
from trainers.experiments.predict.compute_model import Measurement
from trainers.experiments.predict.experiments import (
    Experiment,
    arms_of,
    of_an_arm,
    on_one_device,
)
from trainers.experiments.predict.fitting import Fitted, FittedArm
from trainers.experiments.predict.links import (
    has_size_of_links,
    is_over_links_too,
    over_links,
)
from trainers.experiments.predict.performance_model import Costs
from trainers.experiments.predict.report import Report

CONFIG = Config().replace(
    mode="predict",
    strategies=("multi_worker_mirrored", "parameter_server"),
    strategy="multi_worker_mirrored",
    replicas=(2, 512),
)


LINK = LOCAL._replace(link_byte=1.5e-9, wire=1.0)


def fitted_arm(name: str, exchange: Exchange, costs: Costs = LOCAL) -> FittedArm:
    model = model_of(exchange, costs)
    measurements = [
        Measurement(
            num_replicas=count,
            examples=32,
            step_seconds=0.0,
            gradient_bytes=size * 4e6,
            size="ballast" if size > 1 else "own",
            bandwidth_mbit=100.0 if model.has_links and index == 0 else None,
        )
        for index, (count, size) in enumerate(((2, 1), (3, 1), (4, 2), (4, 1)))
    ]
    return FittedArm(
        name=name,
        is_multi_process=name != "mirrored",
        measurements=[
            dataclasses.replace(m, step_seconds=model.of(m)) for m in measurements
        ],
        model=model,
        errors=[0.01, -0.2, 0.05, 0.0],
    )


def report_of(*arms: FittedArm, batch: int = 64, config: Config = CONFIG) -> Report:
    alone = Measurement(
        num_replicas=1, examples=64, step_seconds=COMPUTE.of(64), gradient_bytes=0
    )
    fitted = Fitted(
        compute=COMPUTE,
        reference=[alone],
        # XLA compiles what one device does.
        alone_seconds=7.0e-3,
        arms=arms,
        hardware={},
    )
    return Report(config.replace(global_batch_size=batch), fitted)


def test_errors_are_told_and_the_fastest_is_named() -> None:
    lines = list(
        report_of(
            fitted_arm("multi_worker_mirrored", RING),
            fitted_arm("parameter_server-async", ASYNCHRONOUS),
        ).lines()
    )
    text = "\n".join(lines)
    # The median of 0, 1, 5 and 20.
    assert "error     multi_worker_mirrored: median 3 % of 4 runs" in text
    assert "at most 20 %, and with more bytes to send 5 %" in text
    # 7.4 ms of computing, 2 of software, 0.4 of messages, 8 ms of bytes of a worker,
    # two at a time; 8 more of the server, where one waits for the other.
    assert "best      2 replicas: multi_worker_mirrored, 10.4 ms a step" in text
    assert "parameter_server-async: updates are of stale gradients" in text
    # Nobody has shown that the model holds for this many.
    (row,) = (
        line for line in lines if line.startswith("multi_worker") and " 512" in line
    )
    assert row.split()[2:] == ["-"] * 4
    assert (
        "best      512 replicas: none: predictions are shown to hold up to 8 replicas"
        in text
    )
    assert (
        "bounds    measured: 2 to 4 replicas, 4 to 8 MB of gradients, loopback; "
        "predicted: up to 8 replicas" in text
    )
    table = [line for line in lines if line.startswith(("predicted", "multi_", "para"))]
    assert max(map(len, table[:5])) <= 80


def test_what_is_slower_than_one_device_is_called_so() -> None:
    lines = report_of(fitted_arm("mirrored", RING)).lines()
    text = "\n".join(lines)
    assert "best      2 replicas: mirrored" in text
    assert "slower than one_device, 7 ms" in text
    assert "mirrored: one process, so that its replicas must be in one machine" in text


def test_a_replica_without_an_example_is_not_predicted() -> None:
    text = "\n".join(report_of(fitted_arm("mirrored", RING), batch=1).lines())
    assert "2 replicas: none: they need --global_batch_size=2 or more" in text


def test_measured_networks_are_predicted_too() -> None:
    report = report_of(
        fitted_arm("mirrored", RING),
        fitted_arm("multi_worker_mirrored", RING, LINK),
    )
    lines = list(report.lines())
    # 4.2 ms of computing, 2 of software, 0.2 of messages, 6 of the bytes of 4 MB in
    # processors, and 320 or 32 ms of them on the wire.
    (row,) = (
        line
        for line in lines
        if line.split()[:2] == ["multi_worker_mirrored", "2"] and "%" not in line
    )
    assert row.split()[2:] == ["332", "44.4"]
    content = report.content("command")
    jsonschema.validate(content, SCHEMA)
    found = {
        (p["strategy"], p["num_replicas"], p["bandwidth_gbit"]): p["step_milliseconds"]
        for p in content["predictions"]
    }
    assert set(found) == {
        *(("mirrored", n, 10.0) for n in (2, 512)),
        *(("multi_worker_mirrored", n, g) for n in (2, 512) for g in (0.1, 1.0, 10.0)),
    }
    faster, slower = (found["multi_worker_mirrored", 2, g] for g in (1.0, 0.1))
    assert slower - faster == pytest.approx(320 - 32)
    assert content["bounds"]["measured_bandwidths_mbit"] == [100.0]


def test_a_compression_pays_below_the_bandwidth_of_equal_steps() -> None:
    """8 ms more of software, and a hundredth of the bytes.

    With 2 replicas, 4 MB are 32 Mbit, and processors take 1.5 ns a byte of them, so
    that 0.99 (6 + 32 / Gbit/s) = 8 ms.
    """
    whole = fitted_arm("multi_worker_mirrored", RING, LINK)
    fewer = dataclasses.replace(RING, gradient_bytes=RING.gradient_bytes / 100)

    def compressed(software_seconds: float) -> FittedArm:
        model = model_of(fewer, LINK._replace(update=software_seconds))
        return dataclasses.replace(
            whole,
            name="multi_worker_mirrored-topk-0.01",
            model=model,
            measurements=[m for m in whole.measurements if m.size == "own"] * 2,
            errors=[0.0] * 6,
            compression=parse_compression("topk:0.01"),
        )

    software = whole.model.costs.update
    expected = 0.99 * 32 / (8 - 0.99 * 6)
    for extra, below, words in (
        (8e-3, expected, f"faster below {expected:.2g} Gbit/s"),
        (1.0, None, "not faster from 0.1 Gbit/s up"),
        (0.0, None, "faster on every network"),
    ):
        report = report_of(whole, compressed(software + extra))
        text = "\n".join(report.lines())
        name = "multi_worker_mirrored-topk-0.01"
        assert f"compress  2 replicas: {name}, {words}" in text
        assert "compress  512" not in text
        rows = [line.split()[:3] for line in text.splitlines()]
        assert rows.count(["with", "topk:0.01", "2"]) == 2
        content = report.content("command")
        jsonschema.validate(content, SCHEMA)
        (crossing,) = content["crossings"]
        assert crossing["below_gbit"] == (below and pytest.approx(below, rel=1e-3))


def test_arms_with_compression_are_beside_those_without() -> None:
    arms = arms_of(CONFIG.replace(gradient_compression="powersgd:4"))
    compressions = {arm.name: arm.config.strategy.gradient_compression for arm in arms}
    assert compressions == {
        "multi_worker_mirrored": "none",
        "multi_worker_mirrored-powersgd-4": "powersgd:4",
        "parameter_server-sync": "none",
        "parameter_server-sync-powersgd-4": "powersgd:4",
        "parameter_server-async": "none",
    }
    runs = of_an_arm(arms[1], num_gpus=0)
    assert [(e.num_replicas, e.examples, e.size) for e in runs] == [
        *((2, 32, "own"), (2, 16, "own"), (3, 64 / 3, "own")),
        *((4, 16, "own"), (4, 8, "own")),
    ]
    assert all(has_size_of_links(e, 10.0) for e in runs)


@pytest.mark.parametrize(("batch", "is_short"), [(64, False), (8, True)])
def test_short_steps_are_named(batch: int, is_short: bool) -> None:
    report = report_of(fitted_arm("multi_worker_mirrored", RING), batch=batch)
    words = "note      multi_worker_mirrored: steps below 10 ms are mostly messages"
    steps = [p["step_milliseconds"] for p in report.content("command")["predictions"]]
    assert (min(ms for ms in steps if ms is not None) < 10) == is_short
    assert (words in "\n".join(report.lines())) == is_short


def test_what_the_runs_do_not_tell_is_said() -> None:
    arm = fitted_arm("mirrored", RING)
    model = dataclasses.replace(arm.model, not_identifiable=("update", "message"))
    report = report_of(dataclasses.replace(arm, model=model))
    text = "\n".join(report.lines())
    assert "mirrored: these runs cannot tell what a message costs here" in text
    assert "what a byte costs" not in text
    content = report.content("command")
    jsonschema.validate(content, SCHEMA)
    (strategy,) = content["strategies"]
    assert strategy["not_identifiable"] == [
        "milliseconds_per_update",
        "microseconds_per_message",
    ]


def test_predict_json_follows_its_schema() -> None:
    content = report_of(fitted_arm("multi_worker_mirrored", RING)).content("command")
    jsonschema.validate(content, SCHEMA)
    assert [p["num_replicas"] for p in content["predictions"]] == [2, 512]


def test_what_is_run_covers_shares_and_numbers_of_replicas() -> None:
    reference = on_one_device(CONFIG)
    assert [e.examples for e in reference] == [64, 32, 16, 8, 8, 64, 64]
    sizes = [*["own"] * 4, "ballast", "small", "own"]
    assert [e.size for e in reference] == sizes
    # As XLA compiles nothing that communicates.
    assert [e.config.model.jit_compile for e in reference] == [*["off"] * 6, "auto"]
    arms = {arm.name: arm for arm in arms_of(CONFIG)}
    assert list(arms) == [
        "multi_worker_mirrored",
        "parameter_server-sync",
        "parameter_server-async",
    ]
    ring = of_an_arm(arms["multi_worker_mirrored"], num_gpus=0)
    assert [(e.num_replicas, e.examples, e.size) for e in ring] == [
        *((2, 32, "own"), (2, 16, "own"), (2, 32, "ballast"), (2, 32, "small")),
        (3, 64 / 3, "own"),
        *((4, 16, "own"), (4, 8, "own"), (4, 16, "ballast"), (4, 16, "small")),
    ]
    ballast = [e.size for e in ring if e.config.model.ballast]
    assert ballast == ["ballast"] * 2
    assert {e.config.strategy.num_workers for e in ring} == {2, 3, 4}
    # Each takes whole batches.
    free = of_an_arm(arms["parameter_server-async"], num_gpus=0)
    assert {e.examples for e in free} == {32, 64}
    names = [pathlib.PurePath(e.name).name for e in (*reference, *ring, *free)]
    assert len(set(names)) == len(names)


def test_every_micro_batch_of_a_run_has_an_example() -> None:
    config = CONFIG.replace(gradient_accumulation_steps=16)
    runs = list(on_one_device(config))
    for arm in arms_of(config):
        if arm.config.strategy.is_synchronous:
            runs += of_an_arm(arm, num_gpus=0)
    assert {run.examples for run in runs} >= {16, 32, 64}
    assert min(run.examples for run in runs) == 16
    report = report_of(
        fitted_arm("mirrored", RING), config=config.replace(replicas=(2, 8))
    )
    text = "\n".join(report.lines())
    assert "8 replicas: none: they need --global_batch_size=128 or more" in text


def test_the_fewest_and_the_most_replicas_are_run_over_links() -> None:
    """Strategies of several processes do, in fewer steps if these are slower."""

    def repeated(arms: Config) -> list[Experiment]:
        runs = [e for arm in arms_of(arms) for e in of_an_arm(arm, num_gpus=0)]
        found = [e for e in runs if is_over_links_too(e, runs)]
        # The same runs with ballast take their place if gradients are small.
        ballast = [e.num_replicas for e in found if e.size == "ballast"]
        own = [e for e in found if e.size == "own"]
        assert ballast == [e.num_replicas for e in own]
        return own

    assert repeated(CONFIG.replace(strategies=("mirrored",), strategy="mirrored")) == []
    found = repeated(CONFIG.replace(strategies=("multi_worker_mirrored",)))
    assert [(e.num_replicas, e.examples) for e in found] == [(2, 32), (4, 16)]
    # 12.5 MB take a second at 100 Mbit/s.
    slow, fast = over_links(found[0], 300, step_seconds=0.1, bytes_on_a_link=12.5e6)
    assert (slow.bandwidth_mbit, fast.bandwidth_mbit) == (100.0, 1000.0)
    assert slow.config.length.train_steps == int(300 * 0.1 / 1.1)
    assert fast.config.length.train_steps == int(300 * 0.1 / 0.2)
    assert slow.name != fast.name
    # 1.3 GB take over a minute and a half: some steps are enough, more if each is of
    # one worker only.
    (slow, _) = over_links(found[1], 300, step_seconds=0.1, bytes_on_a_link=1.3e9)
    assert slow.config.length.train_steps == 8
    (_, free) = repeated(
        CONFIG.replace(
            strategies=("parameter_server",),
            update="async",
            strategy="parameter_server",
        )
    )
    (slow, _) = over_links(free, 300, step_seconds=0.1, bytes_on_a_link=1.3e9)
    assert slow.config.length.train_steps == 24


def test_small_gradients_go_over_links_with_ballast() -> None:
    """Gradients of half a mebibyte get a mebibyte of ballast, of two as many again."""
    own, ballast = (
        Experiment(arm="ring", num_replicas=2, config=CONFIG, size=size)
        for size in ("own", "ballast")
    )
    mebibyte = 2.0**20
    assert not has_size_of_links(own, 0.5 * mebibyte)
    assert has_size_of_links(ballast, 1.5 * mebibyte)
    assert has_size_of_links(own, 2 * mebibyte)
    assert not has_size_of_links(ballast, 4 * mebibyte)
