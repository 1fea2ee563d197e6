"""Tests of tensors in buckets, and of buckets in equal parts."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.buckets import Bucket, unpack_part
from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.grouping import (
    BUCKET_BYTES,
    compute_in_order,
    grouped,
    size_with_parts_for_all,
)
from tests import processes


def test_buckets_are_in_the_order_of_the_backward_pass_by_type() -> None:
    """Large tensors have separate buckets, because they then need no copy."""
    tensors = [(tf.float32, 3), (tf.float64, 1), (tf.float32, 9), (tf.float32, 1)]
    assert grouped(tensors, 16) == [[2], [3, 0], [1]]
    assert grouped(tensors, 1) == [[3], [2], [1], [0]]
    assert sorted(grouped(tensors, 1 << 20)) == [[1], [3, 2, 0]]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 40])
def test_parts_are_equal_and_have_every_element_once(num_parts: int) -> None:
    shapes = [tf.TensorShape(shape) for shape in ([4, 3], [], [7], [2, 1, 5])]
    bucket = Bucket([5, 4, 1, 0], shapes, tf.float64, num_parts)
    tensors = [
        tf.reshape(tf.range(float(s.num_elements())) + 100 * i, s)
        for i, s in enumerate(shapes)
    ]
    tensors = [tf.cast(tensor, tf.float64) for tensor in tensors]
    vector = bucket.pack(tensors)
    assert vector.shape == [num_parts * bucket.part_size]
    for got, want in zip(bucket.unpack(vector), tensors, strict=True):
        np.testing.assert_array_equal(got, want)
    seen = []
    for part, values in enumerate(tf.split(vector, num_parts)):
        spans = bucket.spans(part)
        slices = unpack_part(values, spans)
        np.testing.assert_array_equal(bucket.pack_part(slices), values)
        for span, piece in zip(spans, slices, strict=True):
            whole = tf.reshape(tensors[bucket.indices.index(span.index)], [-1])
            np.testing.assert_array_equal(whole[span.start : span.stop], piece)
            seen += [(span.index, e) for e in range(span.start, span.stop)]
    sizes = zip(bucket.indices, shapes, strict=True)
    assert sorted(seen) == sorted(
        (i, e) for i, s in sizes for e in range(s.num_elements())
    )


@pytest.mark.parametrize(
    ("size", "num_replicas", "expected"),
    [
        # The parts have 16 elements and 1 element.
        *((1, 2, 17), (16, 2, 17), (17, 2, 17)),
        # 16 elements for each would be 64 bytes; these become 128, so one part has 32.
        (32, 2, 33),
        # The parts have 48 and 16 elements.
        (64, 2, 64),
        # Two parts have 16 elements, and one has 1.
        (1, 3, 33),
        (1_000_000, 64, 1_000_000),
        # One replica has all elements, so that nothing is appended to them.
        *((0, 1, 1), (5, 1, 5)),
    ],
)
def test_small_sums_are_filled_up_until_all_have_a_part(
    size: int, num_replicas: int, expected: int
) -> None:
    assert size_with_parts_for_all(size, 4, num_replicas) == expected


def last_and_first_gradient(
    features: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> list[tf.Tensor]:
    """Returns the gradients of two dense layers in the order of the backward pass."""
    with tf.GradientTape() as tape:
        tape.watch([first, last])
        loss = tf.reduce_sum(tf.tanh(tf.tanh(features @ first) @ last))
    return tape.gradient(loss, [last, first])


# A program that prints the order in which an executor with one thread computes two
# buffers and sends them, for both orders of sending.
ONE_THREAD = """
import json
import tensorflow as tf
from strategies.inner_loop.grouping import compute_in_order

tf.config.threading.set_inter_op_parallelism_threads(1)
noted = []

def noting(value, name):
    def note(number):
        noted.append(name)
        return number
    noted_value = tf.numpy_function(note, [value], tf.float32, stateful=False)
    return tf.ensure_shape(noted_value, value.shape)

def traced(order):
    @tf.function(autograph=False)
    def step(value):
        buffers = {name: noting(value + 1, name) for name in "ab"}
        compute_in_order([buffers[name] for name in order])
        return [
            noting(tf.expand_dims(buffers[name], 0), f"{name} sent") for name in order
        ]
    return step

for order in ("ab", "ba"):
    step = traced(order)
    # Operations count as expensive until they have been measured.
    for _ in range(20):
        noted.clear()
        step(tf.ones([4]))
    print(json.dumps(noted))
"""


# The tests below read the same order in the graph.
@pytest.mark.exhaustive
def test_a_buffer_is_sent_before_the_next_is_computed_by_one_thread() -> None:
    """TensorFlow's executor runs operations without cost first."""
    done = processes.run_words([sys.executable, "-c", ONE_THREAD])
    assert done.returncode == 0, done.stderr
    orders = [json.loads(line) for line in done.stdout.splitlines()]
    assert orders == [
        ["a", "a sent", "b", "b sent"],
        ["b", "b sent", "a", "a sent"],
    ]


LAYERS = (
    tf.constant([[1.0, 2.0]]),
    tf.constant([[0.1, -0.2], [0.3, 0.4]]),
    tf.constant([[0.5], [-0.6]]),
)


def test_only_the_first_gradient_is_computed_before_it_is_sent() -> None:
    """Operations that only the second gradient needs wait for the first gradient."""
    ordered: list[tf.Tensor] = []

    @tf.function(autograph=False)
    def gradients(*layers: tf.Tensor) -> list[tf.Tensor]:
        ordered[:] = last_and_first_gradient(*layers)
        compute_in_order(ordered)
        return ordered

    graph = gradients.get_concrete_function(*LAYERS).graph
    first, second = (tensor.op for tensor in ordered)
    needed = depended_on(first)
    assert second not in needed
    waits = [op for op in graph.get_operations() if first in op.control_inputs]
    assert waits
    assert not needed & set(waits)
    # Every operation with an input from before the first gradient waits for it; the
    # others, which have only constants as inputs, take no time.
    for operation in depended_on(second) - needed:
        inputs = {tensor.op for tensor in operation.inputs}
        assert first in depended_on(operation) or not inputs & needed, operation.name


def depended_on(operation: tf.Operation) -> set[tf.Operation]:
    """Returns an operation and all that must have run before it."""
    inputs = [tensor.op for tensor in operation.inputs]
    before = [depended_on(each) for each in (*inputs, *operation.control_inputs)]
    return {operation}.union(*before)


def test_an_order_changes_no_gradient() -> None:
    def gradients(*layers: tf.Tensor) -> list[tf.Tensor]:
        buffers = last_and_first_gradient(*layers)
        compute_in_order(buffers)
        return buffers

    ordered = tf.function(gradients, autograph=False)(*LAYERS)
    for got, want in zip(ordered, last_and_first_gradient(*LAYERS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_buffers_of_one_operation_have_no_order() -> None:
    """Gradients of a compiled replica are outputs of one operation."""

    @tf.function(autograph=False)
    def halves(values: tf.Tensor) -> list[tf.Tensor]:
        buffers = tf.split(values, 2)
        compute_in_order(buffers)
        return buffers

    first, second = halves(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal([*first, *second], [1, 2])


def test_gradients_between_workers_are_computed_in_the_order_of_sending() -> None:
    """Each of the two gradients has a separate bucket."""
    size = BUCKET_BYTES // 4

    @tf.function(autograph=False)
    def summed(factor: tf.Tensor) -> ReplicaOutputs:
        last = tf.fill([size], factor)
        first = tf.sqrt(tf.fill([size], factor))
        made[:] = last.op, first.op
        context = tf.distribute.get_replica_context()
        outputs = ReplicaOutputs([first, last], {}, {"loss": factor})
        return all_reduce_packed(context, outputs, None)

    made: list[tf.Operation] = []
    summed.get_concrete_function(tf.constant(4.0))
    last, first = made
    assert last in depended_on(first)
    assert first not in depended_on(last)


@pytest.mark.parametrize(
    ("types", "examples"),
    [
        # A model in float64 with adapters, which Keras makes in float32.
        ((tf.float32, tf.float64), 1 / 3),
        # float16 has no whole numbers above 2,048 that are odd.
        ((tf.float16,), 4097.0),
    ],
)
def test_no_value_loses_digits_to_a_gradient_of_another_type(
    types: tuple[tf.DType, ...], examples: float
) -> None:
    gradients = [tf.cast(tf.constant([1 / 3], tf.float64), one) for one in types]

    @tf.function(autograph=False)
    def summed(*gradients: tf.Tensor) -> ReplicaOutputs:
        context = tf.distribute.get_replica_context()
        sums = {"examples": tf.constant(examples, tf.float64)}
        return all_reduce_packed(context, ReplicaOutputs(gradients, {}, sums), None)

    found = summed(*gradients)
    for got, want in zip(found.gradients, gradients, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(found.sums["examples"], examples)
