"""Tests of the chief's values, which workers get only if they have others."""

import pathlib

import pytest

from tests.cluster.test_emulated_bandwidth import needs_networks, training


@needs_networks
@pytest.mark.cluster
def test_values_that_all_workers_have_are_not_sent(tmp_path: pathlib.Path) -> None:
    """TensorFlow sends each weight from the chief, when it makes the variable.

    Errors of compressed gradients, two of each weight, are zero on all workers. A step
    sends a thousandth of the gradients.
    """
    flags = (
        *("--strategy=multi_worker_mirrored", "--num_workers=2", "--optimizer=sgd"),
        *("--model=mlp", "--hidden_units=1024,1024"),
        *("--gradient_compression=topk:0.001", "--emulated_bandwidth_mbit=1000"),
        *("--train_steps=1000000", "--summary_every_steps=1", "--steps_per_loop=1"),
        *("--set=length.step_delay_milliseconds=100", "--eval_every_steps=none"),
        "--set=report.histogram_every_steps=none",
    )
    weights_bytes = 4 * (65 * 1024 + 1025 * 1024 + 1025 * 10)
    with training(tmp_path, *flags) as running:
        sent_bytes = running.counters()["worker-0", "sent"]
    assert weights_bytes < sent_bytes < 1.5 * weights_bytes
