"""Errors that are about another task, and others."""

from __future__ import annotations

import pytest
import tensorflow as tf

from strategies.cluster.failure_detection import translate_peer_errors
from strategies.cluster.spec import Cluster


def test_a_task_without_others_blames_none_of_them() -> None:
    """Such as an input that reads a bucket, which raises the same class."""
    cluster = Cluster(job="worker", addresses={"worker": ("127.0.0.1:1",)})
    with (
        pytest.raises(tf.errors.UnavailableError, match="the bucket"),
        translate_peer_errors(cluster),
    ):
        raise tf.errors.UnavailableError(None, None, "the bucket does not answer")
