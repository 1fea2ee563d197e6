"""The model of step times against steps whose times are known."""

from __future__ import annotations

import dataclasses

import pytest

from trainers.prediction.model import (
    Compute,
    Crowding,
    Measurement,
    Model,
    Network,
    leave_one_out,
)
from trainers.prediction.traffic import Exchange

CORES = 2
COMPUTE = Compute(seconds=1e-3, seconds_per_example=1e-4)
GRADIENT_BYTES = 4e6
# Ten gigabits a second, 50 microseconds a message.
NETWORK = Network(seconds_per_message=50e-6, seconds_per_byte=0.8e-9)

RING = Exchange(kind="ring", is_synchronous=True, gradient_bytes=GRADIENT_BYTES)
SERVERS = dataclasses.replace(RING, kind="servers")
ASYNCHRONOUS = dataclasses.replace(SERVERS, is_synchronous=False)
ONE_PLACE = dataclasses.replace(RING, kind="one_place")


def model_of(exchange: Exchange) -> Model:
    return Model(
        compute=COMPUTE,
        exchange=exchange,
        crowding=Crowding(cores=CORES, busy_cores=1.0),
        seconds_per_update=2e-3,
        local=Network(seconds_per_message=1e-4, seconds_per_byte=1e-9),
    )


def measured(model: Model) -> list[Measurement]:
    """What this model says of runs on one machine."""
    return [
        Measurement(
            num_replicas=count,
            examples=examples,
            step_seconds=model.measured_here(count, examples),
        )
        for count in (2, 3, 4)
        for examples in (16, 32)
    ]


def test_compute_is_found_again() -> None:
    runs = [
        Measurement(num_replicas=1, examples=n, step_seconds=COMPUTE.of(n))
        for n in (8, 16, 64)
    ]
    found = Compute.fitted(runs)
    assert found.seconds == pytest.approx(1e-3)
    assert found.seconds_per_example == pytest.approx(1e-4)


@pytest.mark.parametrize("exchange", [RING, SERVERS, ASYNCHRONOUS, ONE_PLACE])
def test_runs_that_follow_the_model_are_predicted_exactly(exchange: Exchange) -> None:
    runs = measured(model_of(exchange))
    for error in leave_one_out(runs, COMPUTE, exchange, CORES):
        assert error == pytest.approx(0, abs=1e-6)


def test_a_run_that_does_not_follow_it_shows_in_its_error() -> None:
    runs = measured(model_of(RING))
    runs[3] = dataclasses.replace(runs[3], step_seconds=2 * runs[3].step_seconds)
    errors = leave_one_out(runs, COMPUTE, RING, CORES)
    # It is told as half of what was measured, by the runs that follow the model.
    assert errors[3] == pytest.approx(-0.5, abs=1e-6)


def test_a_ring_of_512_replicas_by_hand() -> None:
    """1,022 messages one after another, and twice the gradient but for a 512th."""
    parts = model_of(RING).elsewhere(512, examples=2, network=NETWORK)
    assert parts.compute == pytest.approx(1e-3 + 2e-4)
    assert parts.software == pytest.approx(2e-3)
    # What a message takes here, which is more than on that network.
    assert parts.latency == pytest.approx(1022 * 1e-4)
    assert parts.transfer == pytest.approx(2 * 511 / 512 * 4e6 * 1e-9)


def test_a_slow_network_counts_as_it_is() -> None:
    slow = Network(seconds_per_message=1e-2, seconds_per_byte=1e-7)
    parts = model_of(RING).elsewhere(2, examples=2, network=slow)
    assert parts.latency == pytest.approx(2 * 1e-2)
    assert parts.transfer == pytest.approx(4e6 * 1e-7)


def test_one_server_carries_what_all_workers_send() -> None:
    one = model_of(SERVERS).elsewhere(8, examples=8, network=NETWORK)
    four = model_of(dataclasses.replace(SERVERS, num_servers=4)).elsewhere(
        8, examples=8, network=NETWORK
    )
    assert one.transfer == pytest.approx(2 * 8 * 4e6 * 1e-9)
    assert four.transfer == pytest.approx(one.transfer / 4)
    # More servers than workers make no worker's own connection faster.
    many = model_of(dataclasses.replace(SERVERS, num_servers=100)).elsewhere(
        8, examples=8, network=NETWORK
    )
    assert many.transfer == pytest.approx(2 * 4e6 * 1e-9)


def test_workers_that_do_not_wait_are_as_fast_as_their_servers() -> None:
    model = model_of(ASYNCHRONOUS)
    cycle = 1e-3 + 64e-4 + 2e-3 + 4 * 1e-4 + 8e6 * 1e-9
    one = model.elsewhere(1, examples=64, network=NETWORK)
    assert one.total == pytest.approx(cycle)
    two = model.elsewhere(2, examples=64, network=NETWORK)
    assert two.total == pytest.approx(cycle / 2)
    # An update brings 8 MB to and from the server, whoever computed it.
    many = model.elsewhere(512, examples=64, network=NETWORK)
    assert many.total == pytest.approx(8e6 * 1e-9)


def test_replicas_share_the_cores_of_the_machine_they_are_measured_on() -> None:
    model = model_of(RING)
    steps = [model.measured_here(count, 32) for count in (1, 2, 4)]
    elsewhere = model.elsewhere(4, 32, NETWORK).compute
    assert steps[0] == pytest.approx(COMPUTE.of(32) + 2e-3)
    assert elsewhere == pytest.approx(COMPUTE.of(32))
    without_traffic = dataclasses.replace(
        model, local=Network(seconds_per_message=0, seconds_per_byte=0)
    )
    # Four that keep a core busy each, on two cores.
    assert without_traffic.measured_here(4, 32) == pytest.approx(
        2 * (COMPUTE.of(32) + 2e-3)
    )


def test_those_that_take_turns_may_wait_longer_than_their_number_explains() -> None:
    model = dataclasses.replace(
        model_of(RING),
        crowding=Crowding(cores=CORES, busy_cores=1.0, contention=1.5),
    )
    assert model.crowding.factor(2) == 1
    assert model.crowding.factor(3) == pytest.approx(1.5 * 1.5)
    for error in leave_one_out(measured(model), COMPUTE, RING, CORES):
        assert error == pytest.approx(0, abs=1e-6)
