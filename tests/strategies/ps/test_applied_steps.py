"""Tests of the record from which a repeated closure knows its applied steps."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.ps.applied_steps import AppliedSteps

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


class Closure:
    """A closure that applies steps as workers do, and returns those applied before."""

    def __init__(self) -> None:
        self.applied_steps = AppliedSteps(DEVICE)
        self.function = tf.function(self._run, autograph=False)

    def _run(
        self, call: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        done = self.applied_steps.committed(call, first_step, num_steps)
        steps = first_step + tf.range(tf.cast(num_steps, tf.int64))

        def do(step: tf.Tensor) -> tf.Tensor:
            loss = tf.cast(step, tf.float32) / 2
            sums = {"loss": loss, "examples": 64.0}
            encoded = self.applied_steps.encode(call, step, sums)
            record = self.applied_steps.record(encoded, step - 3)
            self.applied_steps.write(record)
            self.applied_steps.commit(record, step + 1)
            return step

        tf.map_fn(do, steps)
        return done, self.applied_steps.values(done)

    def run(self, call: int, first_step: int, num_steps: int) -> list[np.ndarray]:
        arguments = (
            tf.constant(call, tf.int64),
            tf.constant(first_step, tf.int64),
            tf.constant(num_steps, tf.int32),
        )
        return [part.numpy() for part in self.function(*arguments)]


@pytest.fixture(scope="module")
def closure() -> Closure:
    return Closure()


def test_the_first_time_nothing_is_done(closure: Closure) -> None:
    done, values = closure.run(call=1, first_step=0, num_steps=4)
    assert (len(done), len(values)) == (0, 0)


def test_steps_are_done_as_far_as_they_are_committed(closure: Closure) -> None:
    closure.run(call=2, first_step=10, num_steps=3)
    closure.run(call=2, first_step=14, num_steps=1)
    done, values = closure.run(call=2, first_step=10, num_steps=5)
    # Step 13 was not done, so step 14 must be done again although it is committed.
    assert done[:, 1].tolist() == [10, 11, 12]
    sums, staleness = closure.applied_steps.read(done, values)
    assert sums["loss"].tolist() == [5.0, 5.5, 6.0]
    assert sums["examples"].tolist() == [64.0] * 3
    # One of the four updates since the version that it read is its own.
    assert staleness.tolist() == [3.0] * 3


def test_another_call_does_the_same_steps_once_more(closure: Closure) -> None:
    """A run that goes back to a checkpoint does this."""
    closure.run(call=3, first_step=20, num_steps=2)
    done, _ = closure.run(call=4, first_step=20, num_steps=2)
    assert len(done) == 0


def test_steps_whose_rows_were_taken_by_later_ones_are_done_again(
    closure: Closure,
) -> None:
    closure.run(call=5, first_step=30, num_steps=4)
    closure.run(call=5, first_step=32 + (1 << 14), num_steps=1)
    done, _ = closure.run(call=5, first_step=30, num_steps=4)
    assert done[:, 1].tolist() == [30, 31]


def test_more_values_than_a_server_has_memory_for_are_refused() -> None:
    """A confusion matrix of 1,000 classes would be 122 GiB for all steps."""
    zero = tf.zeros([], tf.int64)
    table = {"iou": tf.zeros([1000, 1000])}
    with pytest.raises(UsageError, match=r"have 1,000,000 numbers .* at most 32,768"):
        AppliedSteps(DEVICE).encode(zero, zero, table)


def test_the_variable_of_values_costs_no_second_trace() -> None:
    """TensorFlow traces a function twice that makes a variable."""
    closure = Closure()
    for call in (1, 2):
        closure.run(call, first_step=0, num_steps=2)
    assert closure.function.experimental_get_tracing_count() == 1
