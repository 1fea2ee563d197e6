"""Checks that the measured wait of steps for their batches is the real wait."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from strategies.inner_loop.input import PrefetchedChunks, StepChunks, Steps, TimedBatch

STEPS_OF_SPAN = 2
NUM_STEPS = 20
PAUSE_SECONDS = 0.02


def slowly(value: np.ndarray, seconds: float) -> np.ndarray:
    time.sleep(float(seconds))
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The times of the steps of one call.

    Attributes:
      batches: Sum of the batches, which are numbers.
      first_wait_seconds: Wait of the first step.
      wait_seconds: Wait of all steps except the first.
      seconds: Duration of the call.
    """

    batches: int
    first_wait_seconds: float
    wait_seconds: float
    seconds: float


class Loop:
    """A loop that adds up batches, which are numbers.

    Every call takes `NUM_STEPS` of them.
    """

    def __init__(
        self,
        *,
        span_seconds: float = 0.0,
        step_seconds: float = 0.0,
        num_calls: int = 2,
    ):
        numbers = tf.data.Dataset.range(num_calls * NUM_STEPS).batch(STEPS_OF_SPAN)

        def pause(span: tf.Tensor) -> tf.Tensor:
            span = tf.numpy_function(slowly, [span, span_seconds], tf.int64)
            return tf.ensure_shape(span, [None])

        # By default tf.data reads ahead; here a span is read when a step asks for it.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        spans = numbers.map(pause) if span_seconds else numbers
        self._spans = StepChunks(spans.with_options(options))
        self._step_seconds = step_seconds
        self._applied = tf.Variable(0)
        self._input = PrefetchedChunks()
        self._function = tf.function(
            self._run,
            autograph=False,
            input_signature=[self._input.signature(self._spans)],
        )
        self._function.get_concrete_function()

    def call(self) -> Outcome:
        began = time.perf_counter()
        state, left, _ = self._function(self._input.arguments(self._spans))
        seconds = time.perf_counter() - began
        self._input.keep(self._spans, left)
        _, batches, first_wait, wait = (value.numpy() for value in state)
        return Outcome(int(batches), float(first_wait), float(wait), seconds)

    def _run(self, arguments: object) -> object:
        return self._input.run(
            arguments,
            Steps(
                initial=(tf.constant(0), tf.constant(0, tf.int64), _SECONDS, _SECONDS),
                shapes=(tf.TensorShape([]),) * 4,
                proceed=lambda step, *_: step < NUM_STEPS,
                run=self._step,
            ),
        )

    def _step(
        self, state: Sequence[tf.Tensor], taken: TimedBatch
    ) -> Sequence[tf.Tensor]:
        step, batches, first_wait, wait = state
        if self._step_seconds:
            # As with a step's update, no returned value depends on it.
            tf.numpy_function(slowly, [np.float64(0), self._step_seconds], tf.float64)
            self._applied.assign_add(1)
        first_wait += tf.where(step > 0, _SECONDS, taken.wait)
        wait += tf.where(step > 0, taken.wait, _SECONDS)
        return step + 1, batches + taken.batch, first_wait, wait


_SECONDS = tf.constant(0.0, tf.float64)


@pytest.mark.parametrize("call", [0, 1])
def test_steps_wait_for_an_input_that_is_slower(call: int) -> None:
    """The steps wait for about as long as all spans except the first take."""
    loop = Loop(span_seconds=PAUSE_SECONDS)
    outcome = [loop.call() for _ in range(call + 1)][-1]
    spans = NUM_STEPS // STEPS_OF_SPAN
    # The last span may have begun when the loop got the span before it; sleeping is
    # exact to much less than a tenth.
    assert outcome.wait_seconds > 0.9 * (spans - 2) * PAUSE_SECONDS
    assert outcome.wait_seconds < outcome.seconds


def test_a_slow_step_is_not_taken_for_input() -> None:
    """An update does not count as input either; no value of the loop depends on it."""
    outcome = Loop(step_seconds=PAUSE_SECONDS).call()
    assert outcome.seconds > NUM_STEPS * PAUSE_SECONDS
    assert outcome.wait_seconds < outcome.seconds / 4


def test_no_step_waits_for_less_than_no_time() -> None:
    """Most calls began with -30 to -170 microseconds, and some with milliseconds."""
    loop = Loop(num_calls=200)
    outcomes = [loop.call() for _ in range(200)]
    assert min(outcome.first_wait_seconds for outcome in outcomes) >= 0
    assert min(outcome.wait_seconds for outcome in outcomes) >= 0


def test_the_next_span_is_read_while_steps_are_computed() -> None:
    """Steps that together take three times as long as a span do not wait for it."""
    seconds = 1.5 * PAUSE_SECONDS
    outcome = Loop(span_seconds=PAUSE_SECONDS, step_seconds=seconds).call()
    assert outcome.wait_seconds < NUM_STEPS // STEPS_OF_SPAN * PAUSE_SECONDS / 2


def test_calls_go_on_where_the_last_one_ended_and_take_all() -> None:
    loop = Loop()
    batches = np.arange(2 * NUM_STEPS).reshape(2, NUM_STEPS)
    assert [loop.call().batches for _ in range(2)] == batches.sum(axis=1).tolist()
