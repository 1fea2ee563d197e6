"""Checks that packed tensors arrive as they were sent."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.ps.async_coordinator import divided
from strategies.ps.tensor_packing import ResultPacking, read_here, sent

DEVICES = ("/job:localhost/replica:0/task:0/device:CPU:1",) * 2 + (
    "/job:localhost/replica:0/task:0/device:CPU:2",
) * 2


HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def made_variables() -> list[tf.Variable]:
    """Makes variables of two types and of all kinds of shapes, on two other devices."""
    values = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        tf.constant(5, tf.int64),
        tf.constant([6.0]),
        tf.constant([[[7.0, 8.0]]]),
    ]
    variables = []
    for value, device in zip(values, DEVICES, strict=True):
        with tf.device(device):
            variables.append(tf.Variable(value))
    return variables


def crossings(function: tf.types.experimental.ConcreteFunction) -> int:
    """Returns the number of tensors that go from one device to another."""
    return len(
        {
            (tensor.name, operation.device)
            for operation in function.graph.get_operations()
            for tensor in operation.inputs
            if tensor.op.type not in ("Placeholder", "Const")
            and "" != tensor.device != operation.device != ""
        }
    )


def test_variables_are_read_with_a_message_for_each_device() -> None:
    variables = made_variables()

    def read() -> list[tf.Tensor]:
        with tf.device(HERE):
            return read_here(variables)

    traced = tf.function(read).get_concrete_function()
    for value, variable in zip(traced(), variables, strict=True):
        np.testing.assert_array_equal(value, variable)
        assert value.dtype == variable.dtype
        assert value.shape == variable.shape
    assert crossings(traced) == len(set(DEVICES))


def test_what_is_large_goes_by_itself_and_is_not_copied() -> None:
    large = 1 << 16
    with tf.device(DEVICES[0]):
        variables = [tf.Variable(tf.range(large, dtype=tf.float32)) for _ in range(2)]
        variables = [tf.Variable([1.0]), *variables, tf.Variable([2.0])]

    def there_and_back() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.device(HERE):
            here = read_here(variables)
            return here, sent(here, [DEVICES[0]] * len(here))

    traced = tf.function(there_and_back).get_concrete_function()
    for values in traced():
        for value, variable in zip(values, variables, strict=True):
            np.testing.assert_array_equal(value, variable)
    # Each direction has the two large tensors, and one message with all others.
    assert crossings(traced) == 2 * (2 + 1)
    concatenated = [
        tensor.shape
        for operation in traced.graph.get_operations()
        if operation.type == "ConcatV2"
        for tensor in operation.outputs
    ]
    assert concatenated
    assert all(shape.num_elements() <= 2 * tf.float32.size for shape in concatenated)


def test_gradients_arrive_where_their_variables_are() -> None:
    rows = tf.IndexedSlices(
        tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([9, 2])
    )
    values = [tf.ones([2, 2]), None, rows, tf.constant([[[7.0, 8.0]]])]

    devices: list[str] = []

    def send() -> list[tf.Tensor | tf.IndexedSlices | None]:
        with tf.device(HERE):
            there = sent(values, DEVICES)
        devices.extend(
            t.op.device for t in tf.nest.flatten(there, True) if t is not None
        )
        return there

    first, nothing, sparse, last = tf.function(send)()
    assert nothing is None
    np.testing.assert_array_equal(first, values[0])
    np.testing.assert_array_equal(last, values[3])
    assert isinstance(sparse, tf.IndexedSlices)
    np.testing.assert_array_equal(sparse.values, rows.values)
    np.testing.assert_array_equal(sparse.indices, rows.indices)
    assert DEVICES[0] in devices
    assert DEVICES[3] in devices
    assert HERE not in devices


def test_values_of_all_types_go_in_one_message_and_arrive_bit_for_bit() -> None:
    def rows(count: int) -> tf.IndexedSlices:
        values = tf.random.stateless_normal([9, 3], seed=[0, 1])[:count]
        indices = tf.range(10, 19, dtype=tf.int64)[:count]
        return tf.IndexedSlices(values, indices, tf.constant([99, 3], tf.int64))

    fixed = [
        tf.constant([True, False, True]),
        tf.constant([[1.5, float("nan")], [float("-inf"), -0.0]]),
        tf.constant(2**53 + 1, tf.int64),
        tf.constant([1.7e9 + 1e-6, 0.1], tf.float64),
        tf.constant([0.1, 3.0], tf.bfloat16),
        tf.constant([-7], tf.int32),
        tf.zeros([0, 4]),
    ]

    def send(count: tf.Tensor) -> list[tf.Tensor | tf.IndexedSlices]:
        with tf.device(HERE):
            values = [rows(count), *fixed, rows(count // 2)]
            return sent(values, [DEVICES[0]] * len(values))

    function = tf.function(send, input_signature=[tf.TensorSpec([], tf.int32)])
    assert crossings(function.get_concrete_function()) == 1
    for count in (9, 1, 0):
        first, *found, last = function(tf.constant(count))
        for got, want in zip(found, fixed, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            assert got.numpy().tobytes() == want.numpy().tobytes()
        for got, want in ((first, rows(count)), (last, rows(count // 2))):
            np.testing.assert_array_equal(got.indices, want.indices)
            np.testing.assert_array_equal(got.values, want.values)
            np.testing.assert_array_equal(got.dense_shape, [99, 3])


def test_what_is_packed_comes_out_again() -> None:
    packing = ResultPacking()
    values = [
        tf.constant(3),
        tf.zeros([0, 3], tf.float64),
        tf.constant([[1.5, float("nan")], [float("-inf"), 0.0]]),
        tf.constant([2**53, -1], tf.int64),
        tf.constant([1.7e9 + 1e-6], tf.float64),
    ]
    packed = tf.function(lambda: packing.pack(values))()
    # One tensor is one message.
    assert packed.shape == [len(values)]
    for got, want in zip(packing.unpack(packed.numpy()), values, strict=True):
        np.testing.assert_array_equal(got, want)
        assert (got.dtype, got.shape) == (want.dtype.as_numpy_dtype, want.shape)


@pytest.mark.parametrize(
    ("num_steps", "num_workers", "most", "expected"),
    [
        (0, 2, 50, [0]),
        (1, 3, 50, [1]),
        (100, 2, 50, [50, 50]),
        (100, 2, 60, [50, 50]),
        (100, 3, 20, [17] * 4 + [16] * 2),
        (7, 2, 0.4, [1] * 7),
    ],
)
def test_every_worker_gets_as_many_steps(
    num_steps: int, num_workers: int, most: float, expected: list[int]
) -> None:
    assert divided(num_steps, num_workers, most) == expected
