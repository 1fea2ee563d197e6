"""Bytes that workers send, by the types of the gradients and of the wire."""

from __future__ import annotations

import types
from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives.update_exchange import SummedGradients

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
