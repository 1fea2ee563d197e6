"""Tests of queues that add up the gradients of the workers that send first."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.devices.assignment import logical_cpus
from strategies.ps.gradient_queues import GradientQueues

NUM_WORKERS = 3


@pytest.fixture(scope="module")
def servers() -> list[str]:
    logical_cpus(2)
    devices = tf.config.list_logical_devices("CPU")
    prefix = "/job:localhost/replica:0/task:0"
    return [f"{prefix}/device:CPU:{index}" for index in range(len(devices))][:2]


class Exchange:
    """Queues with traced functions to send and take, as workers and the chief do."""

    def __init__(self, servers: list[str], num_required: int):
        gradient_devices = [servers[0], servers[1], servers[1]]
        self.queues = GradientQueues(
            servers, gradient_devices, NUM_WORKERS, num_required
        )
        self._send = tf.function(self._traced_send, autograph=False)
        self._take = tf.function(self.queues.take, autograph=False)

    def _traced_send(
        self, attempt: tf.Tensor, worker: tf.Tensor, value: tf.Tensor
    ) -> tf.Tensor:
        with tf.control_dependencies(
            [self.queues.send(attempt, worker, shares_of(value))]
        ):
            return tf.constant(0)

    def send(self, attempt: int, worker: int, value: float) -> None:
        self._send(
            tf.constant(attempt, tf.int64),
            tf.constant(worker, tf.int64),
            tf.constant(value, tf.float64),
        )

    def take(self, attempt: int) -> tuple[ReplicaOutputs, tf.Tensor]:
        return self._take(tf.constant(attempt, tf.int64))


def shares_of(value: Any) -> ReplicaOutputs:
    """Returns dense and sparse gradients for both servers, and a missing one."""
    rows = tf.reshape(tf.cast(value, tf.float32), [1, 1])
    sparse = tf.IndexedSlices(rows, tf.constant([2], tf.int64), tf.constant([4, 1]))
    dense = tf.cast(value, tf.float32) * tf.ones([2, 2])
    return ReplicaOutputs(
        gradients=[dense, None, sparse],
        state={"moving": tf.cast(value, tf.float32)},
        sums={"loss": value, "examples": tf.ones([], tf.float64)},
    )


def assert_sum(outputs: ReplicaOutputs, values: list[float]) -> None:
    total = sum(values)
    dense, missing, sparse = outputs.gradients
    np.testing.assert_array_equal(dense, np.full([2, 2], total))
    assert missing is None
    assert sorted(sparse.values.numpy().ravel()) == sorted(values)
    np.testing.assert_array_equal(sparse.indices, [2] * len(values))
    np.testing.assert_array_equal(sparse.dense_shape, [4, 1])
    assert outputs.state["moving"].numpy() == total
    assert outputs.sums["loss"].numpy() == total
    assert outputs.sums["examples"].numpy() == len(values)


def test_all_workers_are_added_up(servers: list[str]) -> None:
    exchange = Exchange(servers, num_required=3)
    for worker, value in enumerate((1.0, 2.0, 4.0)):
        exchange.send(1, worker, value)
    outputs, late = exchange.take(1)
    assert_sum(outputs, [1.0, 2.0, 4.0])
    assert late.numpy() == 0


def test_what_comes_late_is_left_out_and_counted(servers: list[str]) -> None:
    exchange = Exchange(servers, num_required=2)
    for worker, value in enumerate((1.0, 2.0, 4.0)):
        exchange.send(1, worker, value)
    assert_sum(exchange.take(1)[0], [1.0, 2.0])
    exchange.send(2, 1, 16.0)
    exchange.send(2, 2, 8.0)
    outputs, late = exchange.take(2)
    assert_sum(outputs, [8.0, 16.0])
    assert late.numpy() == 1


def test_a_worker_counts_once(servers: list[str]) -> None:
    """TensorFlow repeats the closure of a worker that was lost after it had sent."""
    exchange = Exchange(servers, num_required=2)
    exchange.send(1, 0, 1.0)
    exchange.send(1, 0, 1.0)
    exchange.send(1, 1, 2.0)
    assert_sum(exchange.take(1)[0], [1.0, 2.0])


def test_all_servers_take_the_same_workers(servers: list[str]) -> None:
    exchange = Exchange(servers, num_required=2)
    for worker, value in enumerate((1.0, 2.0, 4.0)):
        exchange.send(1, worker, value)
    # On the second server the workers are in another order.
    second = exchange.queues._queues[1]
    with tf.device(servers[1]):
        first_in = second.dequeue()
        second.enqueue(first_in)
    assert_sum(exchange.take(1)[0], [1.0, 2.0])


def test_a_wait_can_be_ended(servers: list[str]) -> None:
    exchange = Exchange(servers, num_required=3)
    exchange.send(1, 0, 1.0)
    exchange.queues.give_up()
    assert np.isnan(exchange.take(1)[0].sums["loss"])
