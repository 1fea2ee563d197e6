"""What a prediction says, of measurements that are made up."""

from __future__ import annotations

import dataclasses
import pathlib

import jsonschema

from tests.trainers.experiments.predict.test_performance_model import (
    ASYNCHRONOUS,
    COMPUTE,
    RING,
    model_of,
)
from tests.trainers.experiments.predict.test_predict import SCHEMA
from trainers.config.config import Config
from trainers.experiments.predict.communication_model import Exchange
from trainers.experiments.predict.experiments import arms_of, of_an_arm, on_one_device
from trainers.experiments.predict.fitting import Fitted, FittedArm
from trainers.experiments.predict.performance_model import Measurement
from trainers.experiments.predict.report import Report

CONFIG = Config().replace(
    mode="predict",
    strategies=("multi_worker_mirrored", "parameter_server"),
    strategy="multi_worker_mirrored",
    replicas=(2, 512),
)


def fitted_arm(name: str, exchange: Exchange) -> FittedArm:
    model = model_of(exchange)
    return FittedArm(
        name=name,
        is_multi_process=name != "mirrored",
        measurements=[
            Measurement(
                num_replicas=count,
                examples=32,
                step_seconds=model.measured_here(count, 32),
                gradient_bytes=4e6,
                has_ballast=index == 2,
            )
            for index, count in enumerate((2, 3, 4, 4))
        ],
        model=model,
        errors=[0.01, -0.2, 0.05, 0.0],
    )


def report_of(*arms: FittedArm) -> Report:
    alone = Measurement(
        num_replicas=1,
        examples=64,
        step_seconds=COMPUTE.of(64),
        gradient_bytes=0,
        has_ballast=False,
    )
    fitted = Fitted(compute=COMPUTE, reference=[alone], arms=arms, hardware={})
    return Report(CONFIG, fitted)


def test_errors_are_told_and_the_fastest_is_named() -> None:
    lines = list(
        report_of(
            fitted_arm("multi_worker_mirrored", RING),
            fitted_arm("parameter_server-async", ASYNCHRONOUS),
        ).lines()
    )
    text = "\n".join(lines)
    # The median of 0, 1, 5 and 20.
    assert "error     multi_worker_mirrored: 3 % in the middle of 4 runs" in text
    assert "at most 20 %, and with more bytes to send 5 %" in text
    # 7.4 ms of computing, 2 of software, 0.4 of messages, 8 of bytes, two at a time.
    assert "best      2 replicas: parameter_server-async, 8.9 ms a step" in text
    assert "parameter_server-async: updates are of stale gradients" in text
    # 64 examples are too few for 512 replicas that share them.
    (row,) = (
        line for line in lines if line.startswith("multi_worker") and " 512" in line
    )
    assert row.split()[2:] == ["-"] * 4
    table = [line for line in lines if line.startswith(("predicted", "multi_", "para"))]
    assert max(map(len, table[:5])) <= 80


def test_what_is_slower_than_one_device_is_called_so() -> None:
    lines = report_of(fitted_arm("mirrored", RING)).lines()
    text = "\n".join(lines)
    assert "best      2 replicas: mirrored" in text
    assert "slower than one_device, 7.4 ms" in text
    assert "mirrored: one process, so that its replicas must be in one machine" in text
    assert "512 replicas: none: they need --global_batch_size=512" in text


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
    assert [e.examples for e in reference] == [8, 16, 32, 64, 8]
    assert [e.config.model.ballast for e in reference] == [*[False] * 4, True]
    arms = {arm.name: arm for arm in arms_of(CONFIG)}
    assert list(arms) == [
        "multi_worker_mirrored",
        "parameter_server-sync",
        "parameter_server-async",
    ]
    ring = of_an_arm(arms["multi_worker_mirrored"], num_gpus=0)
    assert [(e.num_replicas, e.examples) for e in ring] == [
        *((2, 32), (2, 16)),
        *((3, 64 / 3), (3, 64 / 3)),
        *((4, 16), (4, 8), (4, 16)),
    ]
    heavy = [index for index, e in enumerate(ring) if e.config.model.ballast]
    assert heavy == [3, 6]
    assert {e.config.strategy.num_workers for e in ring} == {2, 3, 4}
    # Each takes whole batches.
    free = of_an_arm(arms["parameter_server-async"], num_gpus=0)
    assert {e.examples for e in free} == {32, 64}
    names = [pathlib.PurePath(e.name).name for e in (*reference, *ring, *free)]
    assert len(set(names)) == len(names)
