"""Bytes and values that workers send, by the types of gradients and of the wire."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives import update_exchange
from strategies.collectives.update_exchange import SummedGradients
from strategies.common.types import ReplicaOutputs

DENSE = [tf.TensorSpec([10], tf.float64), None, tf.TensorSpec([4], tf.float32)]
ROWS_BYTES = 100


@pytest.mark.parametrize(
    ("all_reduce_dtype", "dense_bytes"), [("as_is", 96), ("bfloat16", 28)]
)
def test_rows_of_sparse_gradients_keep_their_type(
    all_reduce_dtype: str, dense_bytes: int
) -> None:
    strategy: Any = types.SimpleNamespace(num_replicas_in_sync=4)
    update: Any = types.SimpleNamespace(dense_gradients=lambda: DENSE)
    exchange = SummedGradients(strategy, update, all_reduce_dtype)
    sent = exchange.communication(96 + ROWS_BYTES).bytes_per_step_per_replica
    # Each of 4 parts is sent 3 times to add it, and 3 times to distribute the sum.
    assert sent == 2 * 3 * (dense_bytes + ROWS_BYTES) / 4


@pytest.mark.parametrize(
    ("all_reduce_dtype", "sent"), [("as_is", 1 + 2.0**-20), ("bfloat16", 1.0)]
)
def test_only_gradients_are_rounded_to_the_type_of_the_wire(
    all_reduce_dtype: str, sent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    reductions: list[Any] = []
    monkeypatch.setattr(
        update_exchange,
        "compile_replicated",
        lambda *parts: reductions.append(parts[2]),
    )
    unused: Any = None
    SummedGradients(unused, unused, all_reduce_dtype).compile(unused, unused)
    value = tf.constant([1 + 2.0**-20])

    @tf.function(autograph=False)
    def reduced(value: tf.Tensor) -> ReplicaOutputs:
        gradient, state = tf.identity(value), tf.identity(value)
        outputs = ReplicaOutputs([gradient], {"state": state}, {"loss": value})
        (reduction,) = reductions
        return reduction(tf.distribute.get_replica_context(), outputs)

    found = reduced(value)
    np.testing.assert_array_equal(found.gradients[0], [sent])
    np.testing.assert_array_equal(found.state["state"], value)
    np.testing.assert_array_equal(found.sums["loss"], value)
