"""Tests of what this project needs TensorFlow and Keras to do, or works around.

When one of these fails after an upgrade, the code that names it can change.
"""

import importlib
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import google_crc32c
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import (
    losses_by_output,
    metric_results,
    metrics_by_output,
)
from strategies.common.private_apis.fit_data import (
    data_adapter,
    is_batched,
    whole_arrays,
)
from strategies.common.private_apis.graphs import (
    flat_call,
    graphs_collected,
    keep_sums_in_order,
    name_operations_after_layers,
    run_after,
)
from strategies.common.private_apis.models import calls_of, flat_layers, takes_weights
from strategies.common.private_apis.optimizer_slices import adagrad_accumulator
from strategies.common.private_apis.optimizers import (
    build_optimizer_anew,
    keep_excluded_from_weight_decay,
    restore_methods,
    schedule_of,
    stop_reducing_gradients,
    weights_of,
)
from strategies.common.private_apis.random_numbers import (
    random_functions_replaced,
    stateful_draws_replaced,
)
from strategies.common.private_apis.variables import (
    lend_variables,
    make_anew,
    move_variable,
    variables_as_numbers,
)
from tests.processes import ROOT
from trainers.inputs.tfrecord.reader import size_of
from trainers.user_code.own_step.update_catcher import UpdateCatcher


def two_devices() -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def apply_ones(stop: bool) -> float:
    """Returns how much SGD of rate 1 subtracts for gradients of one on two replicas."""
    strategy = two_devices()
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        layer.build((None, 1))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)
    if stop:
        stop_reducing_gradients(optimizer)

    @tf.function
    def step() -> None:
        strategy.run(
            lambda: optimizer.apply([tf.ones([1, 1])], layer.trainable_variables)
        )

    step()
    return -float(layer.kernel.numpy().item())


def test_a_keras_optimizer_reduces_gradients_unless_told_to_stop() -> None:
    assert apply_ones(stop=False) == 2
    assert apply_ones(stop=True) == 1


def test_adagrad_of_keras_takes_the_root_of_rows_without_a_gradient() -> None:
    """This is why the project has its own, with private names for the accumulator."""
    table = keras.Variable(np.ones([1000, 1], np.float32))
    optimizer = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0)
    optimizer.build([table])
    gradient = tf.IndexedSlices(
        *(tf.constant(part) for part in ([[3.0]], [5], [1000, 1]))
    )

    @tf.function
    def step() -> None:
        optimizer.apply([gradient])

    graph = step.get_concrete_function().graph
    roots = [op.outputs[0].shape for op in graph.get_operations() if op.type == "Sqrt"]
    assert roots == [[1000, 1]]
    step()
    assert adagrad_accumulator(optimizer, table).numpy()[5] == 9


def test_operations_have_devices_only_in_the_graphs_that_are_run() -> None:
    """The operations include the body of a loop in a function that is called."""

    @tf.function
    def body(number: tf.Tensor) -> tf.Tensor:
        with tf.device("/cpu:1"):
            return tf.matmul(number, number, name="on_cpu_1")

    @tf.function
    def loop(number: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda _: True, body, [number], maximum_iterations=2)

    ones = tf.ones([2, 2])
    traced = loop.get_concrete_function(ones).graph.get_operations()
    assert not any("on_cpu_1" in operation.name for operation in traced)
    with graphs_collected() as graphs:
        loop(ones)
    nodes = [node for graph in graphs for node in graph.node]
    assert all(node.device for node in nodes)
    # With oneDNN the operation has another name that contains MatMul.
    (product,) = (node for node in nodes if "MatMul" in node.op)
    assert "on_cpu_1" in product.name
    assert tf.DeviceSpec.from_string(product.device).device_index == 1
    with graphs_collected() as graphs:
        pass
    assert graphs == [], "these graphs ran before the block"


def operations_of_a_large_sum() -> set[str]:
    """Returns the types of the operations that a sum of 256 MiB of tensors runs."""
    # TensorFlow assumes that a CPU has 256 MiB of memory.
    add = tf.function(
        lambda x: tf.add_n([tf.roll(x, places, 0) for places in range(4)])
    )
    with graphs_collected() as graphs:
        add(tf.ones([2**24]))
    return {node.op for graph in graphs for node in graph.node}


def test_large_sums_are_added_in_any_order_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context.context(), "_config", None)
    # TensorFlow keeps the optimizer options of calls until soft placement is set.
    tf.config.set_soft_device_placement(True)
    assert "AddN" not in operations_of_a_large_sum()
    assert "TemporaryVariable" in operations_of_a_large_sum()
    keep_sums_in_order()
    tf.config.set_soft_device_placement(True)
    assert "AddN" in operations_of_a_large_sum()
    assert "TemporaryVariable" not in operations_of_a_large_sum()


def test_flat_layers_finds_what_a_layer_keeps_to_itself() -> None:
    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.BatchNormalization()

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.inner(inputs)

    model = keras.Sequential([keras.Input((2,)), Block()])
    found = [type(layer).__name__ for layer in flat_layers(model)]
    assert "BatchNormalization" in found
    assert "BatchNormalization" not in [type(la).__name__ for la in model.layers]


def test_a_built_model_of_a_users_class_takes_weights_only_when_told_to() -> None:
    """Tests `private_apis.models.takes_weights`."""

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.logits = keras.layers.Dense(1)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.logits(inputs)

    model = Own()
    model(tf.zeros((1, 2)))
    with takes_weights(model):
        model.add_weight(shape=(3,), name="further")
    assert [v.name for v in model.trainable_variables] == ["further", "kernel", "bias"]
    with pytest.raises(ValueError, match="already built"):
        model.add_weight(shape=(3,), name="one_more")


def test_random_layers_keep_their_counter_under_a_known_name() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])
    assert [v.name for v in model.variables] == ["seed_generator_state"]
    assert model.weights == []


def test_a_stateless_scope_replaces_the_counter_of_a_random_layer() -> None:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)])
    (state,) = model.variables
    before = state.numpy()

    def draw(seed: int) -> np.ndarray:
        mapping = [(state, tf.constant([seed, 0], tf.int64))]
        with keras.StatelessScope(state_mapping=mapping):
            return model(tf.ones([1, 64]), training=True).numpy()

    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).any()
    np.testing.assert_array_equal(state.numpy(), before)


def test_a_stateless_scope_catches_what_layers_write() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    mean = model.layers[0].moving_mean
    with keras.StatelessScope() as scope:
        model(tf.constant([[1.0, 2.0], [3.0, 4.0]]), training=True)
    np.testing.assert_allclose(scope.get_current_value(mean), [0.02, 0.03], rtol=1e-6)
    np.testing.assert_array_equal(mean.numpy(), [0, 0])


def test_model_losses_cannot_be_read_in_a_scope_that_maps_no_weights() -> None:
    """This is why the project calls regularizers one by one."""
    dense = keras.layers.Dense(1, kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((2,)), dense])
    with (
        keras.StatelessScope(collect_losses=True),
        pytest.raises(AttributeError, match="NoneType"),
    ):
        _ = model.losses


def test_a_checkpoint_leaves_random_counters_out(tmp_path: pathlib.Path) -> None:
    """This is why the project's random numbers have keys and no state."""
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), dropout])
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "variables"))
    saved = [name for name, _ in tf.train.list_variables(path)]
    assert any("kernel" in name for name in saved)
    assert not any("seed" in name for name in saved)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_gradient_of_max_pooling_over_no_rows_ends_the_process() -> None:
    """This is why a replica without examples still computes on one row."""
    program = """
import tensorflow as tf
@tf.function
def gradient(images):
    with tf.GradientTape() as tape:
        tape.watch(images)
        pooled = tf.nn.max_pool2d(tf.nn.relu(images), 2, 2, "VALID")
    return tape.gradient(pooled, images)
print(gradient(tf.zeros([0, 8, 8, 4])).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "Check failed" in done.stderr


# This changes with the version of TensorFlow alone. test_record_files.py has refusals.
@pytest.mark.exhaustive
def test_a_record_with_a_valid_length_that_is_untrue_ends_the_process(
    tmp_path: pathlib.Path,
) -> None:
    """This is why the project checks lengths before TensorFlow reads a file."""
    length = struct.pack("<Q", 2**40)
    path = tmp_path / "untrue.tfrecord"
    path.write_bytes(length + checksum_of_record(length) + b"abc")
    with pytest.raises(UsageError, match=f"record 0 at byte 0: it claims {2**40} byte"):
        size_of(path)
    program = """
import sys, tensorflow as tf
try:
    list(tf.data.TFRecordDataset(sys.argv[1]))
except Exception:
    print("an error, which would do")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode < 0, done.stdout + done.stderr
    assert done.stdout == ""


def checksum_of_record(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def test_index_shuffle_permutes_ranges_of_every_small_length() -> None:
    for length in range(1, 66):
        permuted = tf.random.experimental.index_shuffle(
            tf.range(length, dtype=tf.int64),
            seed=tf.constant([7, 3], tf.int64),
            max_index=tf.constant(length - 1, tf.int64),
        )
        assert sorted(permuted.numpy()) == list(range(length))


def test_slurms_resolver_sorts_nodes_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is why `slurm_addresses` sorts nodes by number."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[9-10]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        {"worker": 2}, port_base=1, gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False
    )
    workers = resolver.cluster_spec().job_tasks("worker")
    assert workers == ["node10:1", "node9:1"]


def test_parameter_servers_have_device_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is why the project sets no filters: TensorFlow hides workers already."""
    filters = []

    def connect(*arguments: object, cluster_device_filters: Any, **others: str) -> None:
        del arguments, others
        filters.append(cluster_device_filters)
        raise InterruptedError

    for set_by_the_strategy in (
        "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE",
        "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY",
    ):
        monkeypatch.setenv(set_by_the_strategy, "")
    remote = importlib.import_module("tensorflow.python.eager.remote")
    monkeypatch.setattr(remote, "connect_to_cluster", connect)
    spec = {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    with pytest.raises(InterruptedError):
        tf.distribute.ParameterServerStrategy(resolver)
    seen = {
        job.name: [list(task.device_filters) for _, task in sorted(job.tasks.items())]
        for job in filters[0]._as_cluster_device_filters().jobs
    }
    assert seen["worker"] == [["/job:ps", "/job:chief"]] * 2
    assert seen["ps"][0] == ["/job:worker", "/job:chief"]


def test_an_operation_can_be_made_to_wait_for_one_made_before() -> None:
    """Tests `private_apis.graphs.run_after`."""

    def trace() -> tf.Tensor:
        first, last = tf.constant(1), tf.constant(2)
        run_after(last.op, first.op)
        assert list(last.op.control_inputs) == [first.op]
        return last

    assert int(tf.function(trace)()) == 2


def test_a_concrete_function_can_be_called_with_its_tensors() -> None:
    """Tests `private_apis.graphs.flat_call`."""
    variable = tf.Variable(1.0)
    numbers = tf.data.Dataset.range(2)
    specs = (tf.TensorSpec([], tf.float32), tf.TensorSpec([None], tf.int32))
    (resource,) = tf.nest.flatten(
        tf.data.IteratorSpec(numbers.element_spec), expand_composites=True
    )

    @tf.function(autograph=False, input_signature=((resource, *specs),))
    def function(tensors: tuple[tf.Tensor, ...]) -> tuple[dict[str, tf.Tensor], None]:
        iterator = tf.nest.pack_sequence_as(
            tf.data.IteratorSpec(numbers.element_spec),
            tensors[:1],
            expand_composites=True,
        )
        return {"z": tensors[1] + variable, "a": (next(iterator), tensors[2])}, None

    tensors = tf.nest.flatten(iter(numbers), expand_composites=True)
    tensors += [tf.constant(2.0), tf.constant([3, 4])]
    call = flat_call(function.get_concrete_function(tuple(tensors)))
    outputs, nothing = call(tensors)
    assert nothing is None
    assert [*outputs] == ["z", "a"]
    assert float(outputs["z"]) == 3
    variable.assign(5)
    outputs, _ = call([tensors[0], tf.constant(4.0), tf.constant([7])])
    assert float(outputs["z"]) == 9
    number, row = outputs["a"]
    assert int(number) == 1
    assert row.numpy().tolist() == [7]


def test_calls_of_layers_are_listed_with_what_they_take() -> None:
    """Tests `private_apis.models.calls_of`: a call follows the calls that it needs."""
    inputs = keras.Input([4], name="inputs")
    shared = keras.layers.Dense(4, name="shared")
    once = shared(inputs)
    added = keras.layers.Add(name="added")([once, inputs])
    twice = shared(added)
    masked = keras.layers.Masking(name="masked")
    model = keras.Model(inputs, masked(keras.layers.Reshape([2, 2])(twice)))
    calls = calls_of(model)
    names = ["shared", "added", "shared", "reshape", "masked"]
    assert [c.layer.name.rstrip("_0123456789") for c in calls] == names
    assert [id(t) for t in calls[1].inputs] == [id(once), id(inputs)]
    assert calls[2].outputs[0] is twice
    assert [call.is_masked for call in calls] == [False] * 4 + [True]


def test_a_variable_that_was_moved_is_used_and_saved(tmp_path: pathlib.Path) -> None:
    """Tests `private_apis.variables.move_variable`: nothing keeps the old variable."""
    layer = keras.layers.Dense(2, name="layer")
    model = keras.Sequential([keras.Input([3]), layer])
    before = layer.kernel.numpy()
    move_variable(layer.kernel, "/device:CPU:1")
    assert layer.kernel.value.device.endswith("CPU:1")
    np.testing.assert_array_equal(layer.kernel.numpy(), before)
    assert [v.value.device[-1] for v in model.trainable_variables] == ["1", "0"]
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    slots = [v.value.device[-1] for v in optimizer.variables if "momentum" in v.path]
    assert slots == ["1", "0"]

    layer.kernel.assign(2 * before)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "variables"))
    layer.kernel.assign(0 * before)
    tf.train.Checkpoint(model=model).restore(path)
    np.testing.assert_array_equal(layer.kernel.numpy(), 2 * before)
    np.testing.assert_array_equal(model(np.eye(3)).numpy(), 2 * before)


def test_a_variable_that_was_made_anew_is_the_strategys() -> None:
    """Tests `private_apis.variables.make_anew`: layers and models use the new one."""
    layer = keras.layers.Dense(2, name="layer")
    model = keras.Sequential([keras.Input([3]), layer])
    before = layer.kernel.numpy()
    strategy = two_devices()
    assert not strategy.extended.variable_created_in_scope(layer.kernel.value)
    with strategy.scope():
        make_anew(layer.kernel)
    assert strategy.extended.variable_created_in_scope(layer.kernel.value)
    assert strategy.extended.variable_created_in_scope(model.weights[0].value)
    assert len(layer.kernel.value.values) == 2
    np.testing.assert_array_equal(layer.kernel.numpy(), before)
    layer.kernel.assign(2 * before)
    predicted = strategy.run(lambda: model(np.eye(3)))
    for values in strategy.experimental_local_results(predicted):
        np.testing.assert_array_equal(values, 2 * before)


def test_clocks_are_read_in_the_order_they_were_made() -> None:
    """TensorFlow orders them across devices, so a pipeline's clock reads a variable."""
    variable = tf.Variable(0.0)

    @tf.function(autograph=False)
    def with_a_variable() -> tf.Tensor:
        with tf.control_dependencies([variable.read_value()]):
            return tf.timestamp()

    @tf.function(autograph=False)
    def read() -> list[tf.Tensor]:
        with tf.device("/device:CPU:0"):
            plain, own = tf.timestamp(), with_a_variable()
        with tf.device("/device:CPU:1"):
            return [plain, own, tf.timestamp(), with_a_variable()]

    operations = read.get_concrete_function().graph.get_operations()
    first, second = (o for o in operations if o.type == "Timestamp")
    assert second.control_inputs == [first]
    calls = [o for o in operations if "PartitionedCall" in o.type]
    assert [call.control_inputs for call in calls] == [[], []]


def test_to_depend_on_a_call_is_not_to_wait_for_what_it_computes() -> None:
    """This is why a pipeline's clock takes values from the operations it waits for."""
    ended = []

    def sleep(array: np.ndarray) -> np.ndarray:
        time.sleep(0.2)
        ended.append(time.time())
        return array

    @tf.function(autograph=False)
    def slow(value: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(sleep, [value], tf.float32, stateful=False)

    @tf.function(autograph=False)
    def called(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        result = slow(value)
        with tf.control_dependencies([result]):
            return tf.timestamp(), result

    now, _ = called(tf.constant(1.0))
    assert float(now) < ended[-1]


@pytest.mark.parametrize("is_marked", [True, False])
def test_autograph_leaves_marked_errors_as_they_are(
    monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    """A refusal inside of a `tf.function` keeps its one line."""
    if not is_marked:
        monkeypatch.delattr(UsageError, "ag_pass_through")

    @tf.function
    def refuse() -> None:
        raise UsageError("give less")

    with pytest.raises(Exception, match="give less") as found:
        refuse()
    assert (str(found.value) == "give less") is is_marked


def test_squares_beyond_the_type_are_clipped_to_what_is_no_number() -> None:
    """This is why trainers/model/update.py bounds the norm before it clips."""
    (clipped,), norm = tf.clip_by_global_norm([tf.constant([1e25, 1.0])], 1.0)
    assert np.isinf(norm)
    assert np.isnan(clipped).all()


# It runs in a separate process, because no collective works in a process after the
# error.
_GATHERS_IN_A_LOOP = """
import sys

import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.all_reduce import all_reduce_packed

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])


def ours(context, rows):
    return all_reduce_packed(context, ReplicaOutputs([rows], {}, {}), None).gradients[0]


def theirs(context, rows):
    return context.all_reduce(tf.distribute.ReduceOp.SUM, rows)


def on_each_replica(step):
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group
    num_rows = 4 - 2 * (step % 2) + replica
    rows = tf.ones([num_rows, 3]) * tf.cast(1 + replica, tf.float32)
    summed = {"ours": ours, "theirs": theirs}[sys.argv[1]](
        context, tf.IndexedSlices(rows, tf.range(num_rows), tf.constant([9, 3]))
    )
    return tf.reduce_sum(tf.convert_to_tensor(summed), axis=1)


@tf.function(autograph=False)
def run(num_steps):
    def body(step, total):
        sums = strategy.run(on_each_replica, args=(step,))
        return step + 1, total + strategy.experimental_local_results(sums)[0]

    start = [tf.constant(0), tf.zeros([9])]
    return tf.while_loop(lambda step, total: step < num_steps, body, start)[1]


for _ in range(2):
    print(run(tf.constant(3)).numpy().tolist())
"""


def gathers_in_a_loop(whose: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _GATHERS_IN_A_LOOP, whose],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


# tests/cluster/test_sparse_gradients.py has the steps that need keys.
@pytest.mark.exhaustive
def test_a_loop_cannot_gather_another_number_of_rows_unless_keys_differ() -> None:
    """This is why the project sets its own keys, by private names tested here."""
    refused = gathers_in_a_loop("theirs")
    assert refused.returncode != 0
    assert "Shape mismatch in the collective" in refused.stderr
    done = gathers_in_a_loop("ours")
    assert done.returncode == 0, done.stderr[-2000:]
    # Steps with 4, 2 and 4 rows of ones and 5, 3 and 5 of twos; three columns.
    sums = [3.0 * count for count in (9, 9, 8, 6, 4, 0, 0, 0, 0)]
    assert done.stdout.splitlines() == [str(sums)] * 2


def test_operations_are_named_after_their_layers_alone() -> None:
    """Keras itself names the scopes of `dense` and `dense_1` dense_1 and dense_1_2."""
    name_operations_after_layers()
    layers = [keras.layers.Dense(1, name=name) for name in ("dense", "dense_1")]
    model = keras.Sequential([*layers, keras.layers.Dense(1, name="dense_2")])
    model.build([None, 1])

    @tf.function
    def twice(features: tf.Tensor) -> tf.Tensor:
        return model(model(features))

    graph = twice.get_concrete_function(tf.TensorSpec([None, 1])).graph
    multiplied = [o.name for o in graph.get_operations() if o.type == "MatMul"]
    scopes = [f"{model.name}/dense{number}" for number in ("", "_1", "_2")]
    assert multiplied == [f"{scope}/MatMul" for scope in scopes] + [
        f"{scope}/MatMul_1" for scope in scopes
    ]
    assert [v.path for v in model.trainable_variables[::2]] == [
        f"{scope}/kernel" for scope in scopes
    ]


def test_a_value_assigned_in_an_inner_function_can_be_read_outside_of_it() -> None:
    """This is why `adapt_tensorflow` calls `inline_functions_in_stateless_scopes`."""
    state = keras.Variable([2.0])

    def double_if_it_is_large(limit: float) -> None:
        factor = 1.0
        if tf.reduce_all(state > limit):
            factor = 2.0
        state.assign(factor * state)

    @tf.function(autograph=False)
    def twice_as_large(function: Any) -> tf.Tensor:
        with keras.StatelessScope() as scope:
            function(1.0)
        return scope.get_current_value(state)

    inner = tf.function(double_if_it_is_large)
    assert twice_as_large(inner).numpy() == [4.0]
    # AutoGraph works as usual, and so do functions in eager code and outside of scopes.
    with keras.StatelessScope():
        assert tf.vectorized_map(abs, tf.constant([-2.0])).numpy() == [2.0]
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        twice_as_large(double_if_it_is_large)
    inner(1.0)
    assert state.numpy() == [4.0]


_GRADIENT_OF_GROUPS = """
import keras
import tensorflow as tf
from strategies.common.private_apis.graphs import inline_functions_in_stateless_scopes

inline_functions_in_stateless_scopes()
layer = keras.layers.Conv2D(2, 1, groups=2, use_bias=False)
features = tf.ones([3, 1, 1, 4])
layer.build(features.shape)
kernel = layer.kernel.value


@tf.function(autograph=False)
def gradient(compute):
    with tf.device("CPU"), keras.StatelessScope(), tf.GradientTape() as tape:
        total = tf.reduce_sum(compute(features))
    return tape.gradient(total, kernel)


print(gradient(layer).numpy().ravel().tolist())
try:
    gradient(lambda features: tf.nn.conv2d(features, kernel, 1, "VALID"))
except tf.errors.InvalidArgumentError:
    print("refused")
"""


def test_gradients_of_grouped_convolutions_need_xla_on_a_cpu() -> None:
    """Keras compiles them, and `inline_functions_in_stateless_scopes` leaves that.

    oneDNN has such kernels. TensorFlow uses them by default on processors that have
    instructions for neural networks, such as AVX512_VNNI (TensorFlow's RFC 400).
    """
    done = subprocess.run(
        [sys.executable, "-c", _GRADIENT_OF_GROUPS],
        cwd=ROOT,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [str([3.0] * 4), "refused"], done.stderr[-2000:]


@pytest.mark.parametrize("name", ["assign", "assign_add", "assign_sub"])
def test_only_a_keras_variable_is_assigned_in_a_scope(name: str) -> None:
    """`adapt_tensorflow` has called `refuse_plain_variables_in_scopes`."""
    plain, state = tf.Variable(2.0), keras.Variable(2.0)
    with keras.StatelessScope() as scope:
        with pytest.raises(UsageError, match="add_weight"):
            getattr(plain, name)(1.0)
        getattr(state, name)(1.0)
        assert scope.get_current_value(state) != 2.0
    getattr(plain, name)(1.0)
    assert (plain.numpy(), state.numpy()) != (2.0, 2.0)


def test_fit_brings_labels_and_predictions_of_a_function_to_one_rank() -> None:
    """This is why the project never calls a loss function directly. Metrics differ."""
    seen = []

    def shapes(y_true: Any, y_pred: Any) -> Any:
        seen.append((tuple(y_true.shape), tuple(y_pred.shape)))
        return tf.zeros([3])

    labels, predictions = tf.ones([3]), tf.ones([3, 1])
    (loss,) = losses_by_output(shapes, None, None, labels, predictions)
    (metric,) = metrics_by_output([shapes], None, None, labels, predictions)
    metric.metric.update_state(labels, predictions)
    assert seen == [((3, 1), (3, 1)), ((3,), (3, 1))]
    assert loss.loss.reduction == "sum_over_batch_size"


def test_one_of_several_losses_can_be_computed_by_another() -> None:
    """`CompileLoss` keeps the losses in a list, and their running means in another."""
    labels = {"a": tf.ones([3]), "b": tf.zeros([3, 1])}
    predictions = {"a": tf.zeros([3, 1]), "b": tf.fill([3, 1], 2.0)}
    given = {"a": "mse", "b": "mae"}
    weights = {"a": 0.5, "b": 3.0}
    first, second = losses_by_output(given, weights, ["a", "b"], labels, predictions)
    assert (first.name, first.weight, second.name, second.weight) == (
        *("a", 0.5),
        *("b", 3.0),
    )
    other = keras.losses.MeanSquaredError(reduction="none")
    values = second.computed_by(other)(labels, predictions)
    assert values.numpy().tolist() == [4.0, 4.0, 4.0]
    assert float(second.computed_by(second.loss)(labels, predictions)) == 2.0
    assert float(first.computed_by(first.loss)(labels, predictions)) == 1.0


def test_metrics_have_the_names_of_evaluate() -> None:
    predictions = [tf.ones([3, 1]), tf.ones([3, 4])]
    labels = [tf.ones([3, 1]), tf.ones([3, 1], tf.int64)]
    given = [["mae", "mae"], ["accuracy"]]
    found = metrics_by_output(given, [["mae"], []], ["a", "b"], labels, predictions)
    results = metric_results(found, [])
    assert list(results) == ["a_mae", "a_mae_1", "b_accuracy", "a_weighted_mae"]
    # The state of the first metric: a sum of 6 over 3 examples.
    total, count = found[0].metric.variables
    state = [(total, tf.constant(6.0)), (count, tf.constant(3.0))]
    assert float(metric_results(found, state)["a_mae"]) == 2.0
    assert [one.is_weighted for one in found] == [False, False, False, True]
    weights = tf.constant([1.0, 2.0, 3.0])
    assert found[0].weights_of_output(labels, weights) is None
    assert found[3].weights_of_output(labels, weights) is weights
    assert isinstance(found[2].metric, keras.metrics.SparseCategoricalAccuracy)
    of_output = found[2].of_output(labels, predictions)
    assert of_output[0] is labels[1]
    assert of_output[1] is predictions[1]


def decayed_by_two_threads(decay: Callable[[tf.Variable], Any]) -> float:
    """Returns the value of a variable that starts at one after 6,000 updates."""
    average = tf.Variable(1.0, dtype=tf.float64)

    def made() -> Any:
        def body(step: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([decay(average)]):
                return step + 1

        return tf.function(
            lambda: tf.while_loop(lambda step: step < 3000, body, [tf.constant(0)]),
            autograph=False,
        )

    functions = [made().get_concrete_function() for _ in range(2)]
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(average.numpy())


def test_momentum_decays_and_adds_in_one_operation() -> None:
    """This is why accumulators of momentum hold the averages of overlapping updates.

    `ResourceApplyMomentum` makes its accumulator momentum * accumulator + gradient,
    and subtracts the rate times the new accumulator from the weights, which keep their
    values if the rate is zero.
    """
    weights = tf.Variable(7.0, dtype=tf.float64)
    nothing = tf.zeros([], tf.float64)

    def at_once(average: tf.Variable) -> Any:
        return tf.raw_ops.ResourceApplyMomentum(
            var=weights.handle,
            accum=average.handle,
            lr=nothing,
            grad=nothing,
            momentum=tf.constant(0.999, tf.float64),
            use_locking=True,
        )

    expected = 0.999**6000
    assert decayed_by_two_threads(at_once) == pytest.approx(expected, rel=1e-11)
    assert weights.numpy() == 7
    # With a read and a separate assignment, one of two updates is lost. The barrier
    # lets both threads read before either assigns, which happened too seldom by chance.
    average = tf.Variable(1.0, dtype=tf.float64)
    both = threading.Barrier(2, timeout=60)

    def read_and_assign() -> None:
        read = average.read_value()
        both.wait()
        average.assign(0.999 * read)

    threads = [threading.Thread(target=read_and_assign) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert average.numpy() == pytest.approx(0.999, rel=1e-11)


def test_layers_of_keras_that_change_state_in_training_are_known() -> None:
    """tests/conformance/test_layer_state.py tests each of the layers that it finds.

    The other layers change their state outside of training, when they are quantized or
    adapted or, as `Layer` does, when they load weights; the states of a recurrent layer
    belong to one batch size.
    """
    folder = pathlib.Path(keras.__file__).parent / "src/layers"
    found = {
        path.stem
        for path in folder.rglob("*.py")
        if ".assign" in path.read_text(encoding="utf-8") and "_test" not in path.stem
    }
    elsewhere = {
        *("layer", "base_conv", "dense", "einsum_dense", "embedding"),
        *("reversible_embedding", "index_lookup", "normalization", "rnn"),
    }
    assert found - elsewhere == {"batch_normalization", "spectral_normalization"}


def test_keras_adagrad_squares_rows_of_one_id_one_by_one() -> None:
    """This is why tests/updates compares embeddings by a matrix product instead."""
    variable = keras.Variable(np.zeros([2, 1]), dtype="float32")
    optimizer = keras.optimizers.Adagrad(initial_accumulator_value=0.0)
    optimizer.build([variable])
    twice = tf.IndexedSlices(tf.ones([2, 1]), tf.zeros([2], tf.int64), [2, 1])
    optimizer.apply([twice], [variable])
    (accumulator,) = (v for v in optimizer.variables if v.shape == (2, 1))
    np.testing.assert_array_equal(accumulator, [[1 + 1], [0]])


_WAITS_FOR_A_SERVER = """
import contextlib, os, sys, threading, time
import tensorflow as tf
from tensorflow.python.eager import context, executor
from strategies.common.private_apis.clusters import own_executor

server = tf.distribute.Server.create_local_server()
tf.config.experimental_connect_to_host(server.target, "server")
device = "/job:server/replica:0/task:0/device:CPU:0"
with tf.device(device):
    queue = tf.queue.FIFOQueue(1, [tf.bool])

@tf.function
def wait():
    with tf.device(device):
        return queue.dequeue()

def run():
    apart = own_executor() if sys.argv[1] == "own" else contextlib.nullcontext()
    with apart, tf.device(device):
        wait()

def end_a_closure(ended):
    with context.executor_scope(executor.new_executor(enable_async=False)):
        pass
    ended.set()

wait.get_concrete_function()
threading.Thread(target=run, daemon=True).start()
deadline, ends = time.monotonic() + 5, True
while ends and time.monotonic() < deadline:
    ended = threading.Event()
    threading.Thread(target=end_a_closure, args=(ended,), daemon=True).start()
    ends = ended.wait(5)
    time.sleep(0.1)
print(ends, flush=True)
os._exit(0)
"""


# This changes with the version of TensorFlow alone. tests/cluster has lost workers.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("where", "ends"), [("default", False), ("own", True)])
def test_a_closure_ends_when_the_default_executor_has_nothing_to_do(
    where: str, ends: bool
) -> None:
    """A lost worker returned no closure while an update waited for it."""
    program = [sys.executable, "-c", _WAITS_FOR_A_SERVER, where]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(ends)], done.stderr[-2000:]


@pytest.mark.parametrize("name", ["adam", "adagrad", "rmsprop"])
def test_optimizers_of_keras_square_each_row_of_an_index_by_itself(name: str) -> None:
    """This is why `fit` trains an embedding differently from summed rows."""
    rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([4, 2]))
    states = []
    for gradient in (rows, tf.convert_to_tensor(rows)):
        variable = keras.Variable(tf.ones([4, 2]))
        optimizer = keras.optimizers.get(name)
        optimizer.apply([gradient], [variable])
        states.append(optimizer.variables[-1].numpy())
    # 1 + 1 in place of (1 + 1) squared.
    apart, summed = (state[1, 0] - state[0, 0] for state in states)
    assert 2 * apart == pytest.approx(summed)


def test_variables_that_are_lent_come_back_with_their_values() -> None:
    variable = keras.Variable(tf.ones([2]))
    former = variable.value
    read = tf.function(lambda: variable.value + 0.0)
    read()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        give_back = lend_variables([variable])
        assert variable.value is not former
    variable.assign([3.0, 4.0])
    give_back()
    assert variable.value is former
    assert read().numpy().tolist() == [3.0, 4.0]


def test_an_optimizer_is_built_anew_for_other_variables() -> None:
    variable = keras.Variable(tf.ones([2]))
    optimizer = keras.optimizers.Adam(0.5)
    optimizer.apply([tf.ones([2])], [variable])
    momentum = optimizer.variables[2].numpy()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        lend_variables([variable])
        build_optimizer_anew(optimizer, [variable])
    assert optimizer.variables[2].numpy().tolist() == momentum.tolist()
    stop_reducing_gradients(optimizer)
    strategy.run(lambda: optimizer.apply([tf.ones([2])], [variable]))
    assert variable.numpy().tolist() == pytest.approx([0.0, 0.0], abs=1e-4)
    restore_methods(optimizer)
    assert "_all_reduce_sum_gradients" not in vars(optimizer)


def test_an_optimizer_that_is_built_anew_keeps_its_own_weights() -> None:
    frozen, kept, excluded = (keras.Variable(tf.ones([2])) for _ in range(3))
    optimizer = keras.optimizers.SGD(0.5, momentum=0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[excluded])
    optimizer.build([frozen, kept, excluded])
    keep_excluded_from_weight_decay(optimizer, [frozen, kept, excluded])
    give_back = lend_variables([frozen, kept, excluded])
    own = list(map(id, (frozen, kept, excluded)))
    for _ in range(2):
        build_optimizer_anew(optimizer, [kept, excluded])
        assert list(map(id, weights_of(optimizer))) == own
        optimizer.apply([tf.zeros([2])] * 2, [kept, excluded])
        assert excluded.numpy().tolist() == [1.0, 1.0]
        give_back()
    assert kept.numpy().tolist() == [0.5625, 0.5625]


def test_the_schedule_of_an_optimizer_is_found() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.1)
    assert schedule_of(keras.optimizers.SGD(schedule)) is schedule
    assert schedule_of(keras.optimizers.SGD(0.5)) is None


def test_a_mirrored_variable_is_a_number_where_it_is_asked_for() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        variable = keras.Variable(2.5)
    with pytest.raises(TypeError):
        float(variable)
    with variables_as_numbers():
        assert (float(variable), int(variable)) == (2.5, 2)
    with pytest.raises(TypeError):
        float(variable)


def test_a_scope_gets_the_updates_of_a_step_and_undivided_losses() -> None:
    strategy = two_devices()
    loss = keras.losses.MeanSquaredError()
    optimizer = keras.optimizers.SGD(0.5)
    with strategy.scope():
        weight = keras.Variable([1.0], name="weight")

    def on_each() -> tuple[tf.Tensor, ...]:
        divided = loss(tf.zeros([2, 1]), tf.ones([2, 1]))
        with UpdateCatcher([], scale=tf.constant(8.0)) as scope:
            optimizer.apply_gradients([(tf.constant([3.0]), weight)])
            whole = loss(tf.zeros([2, 1]), tf.ones([2, 1]))
            scaled = optimizer.scale_loss(whole)
        (update,) = scope.updates
        assert scope.is_scaled
        assert update.optimizer is optimizer
        return divided, whole, scaled, update.gradients[id(weight)]

    first = [strategy.experimental_local_results(v)[0] for v in strategy.run(on_each)]
    assert [float(tf.reduce_sum(value)) for value in first] == [0.5, 1.0, 8.0, 3.0]
    # The scope applied nothing, and outside of it Keras applies updates as usual.
    assert not optimizer.built
    assert weight.numpy() == 1.0
    plain = keras.Variable([1.0])
    keras.optimizers.SGD(0.5).apply_gradients([(tf.constant([1.0]), plain)])
    assert plain.numpy() == 0.5


def test_keras_draws_by_functions_that_can_be_replaced() -> None:
    seeds = []

    def instead(name: str, seed: tf.Tensor) -> Any:
        seeds.append((name, seed.numpy().tolist()))
        return lambda shape, **_: tf.fill(shape, 7.0) if name == "normal" else None

    with random_functions_replaced(instead):
        generator = keras.random.SeedGenerator(5)
        drawn = [
            keras.random.normal((2,), seed=seed).numpy() for seed in (3, generator)
        ]
    assert np.all(np.array(drawn) == 7.0)
    assert seeds == [("normal", [3, 0]), ("normal", [5, 0])]
    # The generator has advanced by one draw.
    assert generator.state.numpy().tolist() == [5, 1]


def test_tensorflow_draws_by_operations_that_can_be_replaced() -> None:
    names = []

    def instead(name: str) -> None:
        names.append(name)

    with stateful_draws_replaced(instead):
        tf.random.normal([2], seed=3)
        tf.random.uniform([2])
        tf.random.uniform([2], 0, 9, tf.int32)
        tf.random.truncated_normal([2])
        tf.random.shuffle([1, 2])
        tf.random.categorical([[0.0, 1.0]], 2)
        tf.random.gamma([2], 1.0)
        tf.random.poisson([2], 1.0)
        tf.nn.dropout(tf.ones([2]), 0.5)
    assert names == [
        *("random_standard_normal", "random_uniform", "random_uniform_int"),
        *("truncated_normal", "random_shuffle", "multinomial"),
        *("random_gamma", "random_poisson_v2", "random_uniform"),
    ]
    tf.random.normal([2])
    assert len(names) == 9


def test_arrays_are_read_as_fit_reads_them() -> None:
    x, y = np.ones([3, 2]), np.array([0, 1, 1])
    found = whole_arrays(x, y, None, {0: 1.0, 1: 5.0})
    assert found is not None
    assert found.features.dtype == np.float32
    assert found.weights.tolist() == [1.0, 5.0, 5.0]
    assert whole_arrays(tf.data.Dataset.from_tensors((x, y)), None, None, None) is None
    with pytest.raises(ValueError, match="sample_weight"):
        whole_arrays(x, y, np.ones([3]), {0: 1.0, 1: 5.0})


def test_a_data_set_is_read_as_fit_reads_it() -> None:
    data = tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.constant([0, 1])))
    adapter = data_adapter(data, class_weight={0: 1.0, 1: 5.0}, shuffle=True)
    ((_, _, weights),) = adapter.get_tf_dataset()
    assert weights.numpy().tolist() == [1.0, 5.0]
    assert adapter.num_batches == 1


def test_batches_of_a_data_set_are_known_by_how_they_were_made() -> None:
    rows = tf.data.Dataset.from_tensor_slices((tf.ones([6, 2]), tf.ones([6])))

    def generated() -> tf.data.Dataset:
        spec = tf.TensorSpec([None, 2])
        return tf.data.Dataset.from_generator(lambda: iter([]), output_signature=spec)

    for batches in (
        rows.batch(2, drop_remainder=True).map(lambda x, y: (y, x)).cache(),
        rows.batch(2, num_parallel_calls=2).shuffle(2).prefetch(1),
        rows.padded_batch(2).take(1),
        rows.batch(3).rebatch(2).concatenate(rows.batch(2)),
        generated().batch(2).filter(lambda x: True),
    ):
        assert is_batched(batches) is True
    assert is_batched(rows.map(lambda x, y: (y, x)).shuffle(3)) is False
    assert is_batched(rows.batch(2).unbatch().repeat(2)) is False
    for unknown in (
        generated().prefetch(1),
        rows.batch(2).concatenate(rows),
        rows.batch(2).interleave(lambda x, y: rows, num_parallel_calls=2),
        rows.batch(2).window(2),
    ):
        assert is_batched(unknown) is None


def test_fit_resets_the_average_of_schedule_free_adamw() -> None:
    """Programs are trained with an optimizer that is built before the first step."""
    x = np.linspace(-1, 1, 32, dtype=np.float32)[:, np.newaxis]

    def losses(builds: bool) -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
        if builds:
            model.optimizer.build(model.trainable_variables)
        return model.fit(x, 2 * x, epochs=4, shuffle=False, verbose=0).history["loss"]

    plain, built = losses(builds=False), losses(builds=True)
    assert plain[0] == built[0]
    assert abs(plain[3] - built[3]) > 1e-3


def test_fit_counts_updates_that_it_does_not_make_at_an_end_it_does_not_know() -> None:
    """Programs count the updates that are made, whose number Adam divides by."""
    x = np.ones((8, 1), np.float32)
    known = tf.data.Dataset.from_tensor_slices((x, x)).batch(4)

    def count(data: tf.data.Dataset) -> int:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data, epochs=2, shuffle=False, verbose=0)
        return int(model.optimizer.iterations)

    assert count(known) == 4
    assert count(known.filter(lambda *_: True)) > 4


def test_fit_keeps_the_values_that_adapt_has_replaced() -> None:
    """Here the next `fit` has the new ones, because it traces its steps anew."""
    x = np.arange(8, dtype=np.float32)[:, np.newaxis]
    normalized = keras.layers.Normalization()
    normalized.adapt(x)
    model = keras.Sequential([keras.Input((1,)), normalized, keras.layers.Dense(1)])

    def loss() -> float:
        fitted = model.fit(x, x, batch_size=8, shuffle=False, verbose=0)
        return float(fitted.history["loss"][0])

    model.compile(keras.optimizers.SGD(0.0), "mse")
    first = loss()
    normalized.adapt(x + 9)
    assert loss() == first
    model.compile(keras.optimizers.SGD(0.0), "mse")
    assert abs(loss() - first) > 1e-3


_EXCHANGES = """
import functools
import tensorflow as tf
from strategies.common.private_apis.collectives import _collective, exchange_rows

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])


def on_each_replica(function):
    def own():
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return function(context, tf.constant([[1.0, 2.0], [3.0, 4.0]]) + 10 * replica)

    run = tf.function(lambda: strategy.run(own), autograph=False)
    return [t.numpy().tolist() for t in strategy.experimental_local_results(run())]


def reduce_scatter(context, rows):
    operation = tf.raw_ops.CollectiveReduceScatterV2
    adding = functools.partial(operation, merge_op="Add", final_op="Id")
    return _collective(adding, context, rows)


print(on_each_replica(exchange_rows))
try:
    on_each_replica(reduce_scatter)
except tf.errors.OpError as error:
    print(error.message)
"""


# tests/cluster/test_sharded_optimizer_state.py has the exchange.
@pytest.mark.exhaustive
def test_rows_can_be_exchanged_on_cpus_and_a_reduce_scatter_is_missing() -> None:
    """A reduce-scatter would save half the memory of an exchange."""
    done = subprocess.run(
        [sys.executable, "-c", _EXCHANGES],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # Replica r has row r of both replicas.
    first, second = [[1.0, 2.0], [11.0, 12.0]], [[3.0, 4.0], [13.0, 14.0]]
    exchanged, refused = done.stdout.splitlines()[:2]
    assert exchanged == str([first, second])
    assert "did not find collective implementation" in refused
