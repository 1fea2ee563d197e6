"""Every private name of TensorFlow and Keras in this project.

Each is here because there is no public name. tests/test_tensorflow_facts.py fails
when one of them changes its meaning.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import (
    get_stateless_scope,
    in_stateless_scope,
)
from keras.src.backend.tensorflow import random
from keras.src.losses import loss as loss_module
from keras.src.random.seed_generator import draw_seed
from keras.src.trainers import compile_utils, data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, data_adapter_utils
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context, executor


def stop_reducing_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer apply gradients as they are.

    In a replica context a Keras 3 optimizer sums gradients over replicas by
    itself. The gradients of this project are summed before that, because clipping has
    to follow the sum. A second sum would multiply them by the number of replicas. Keras
    has no public switch (keras/src/backend/tensorflow/optimizer.py,
    `_all_reduce_sum_gradients`).
    """
    # `list` returns the (gradient, variable) pairs as they are.
    optimizer._all_reduce_sum_gradients = list


def count_atomically(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer's step counter atomic, for several workers that add to it.

    A Keras variable reads, adds and writes in three operations: 300 steps of two
    asynchronous workers left the counter at 236. Adam's bias correction and learning
    rate schedules read the counter (keras/src/backend/common/variables.py,
    `assign_add`; the counter is `Optimizer.iterations`, a read-only property).
    """
    counter = optimizer._iterations
    # The `tf.Variable` below a Keras variable adds in one operation.
    counter.assign_add = lambda value: counter.value.assign_add(
        tf.cast(value, counter.value.dtype)
    )


def build_optimizer_anew(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]
) -> None:
    """Makes the variables of an optimizer anew, with their values, in this scope.

    A program makes its optimizer before it is known under which strategy it trains.
    The optimizer keeps the strategy of its creation, and finds the variables that
    belong to a weight by the identity of the `tf.Variable` (keras/src/backend/
    tensorflow/optimizer.py, `__init__` and `_var_key`).

    Args:
      optimizer: Optimizer, perhaps not built yet.
      weights: Trainable variables, which are of this scope already.
    """
    optimizer._distribution_strategy = tf.distribute.get_strategy()
    for variable in optimizer.variables:
        make_anew(variable)
    if not optimizer.built:
        optimizer.build(list(weights))
        return
    optimizer._trainable_variables_indices = {
        optimizer._var_key(weight): index for index, weight in enumerate(weights)
    }


def schedule_of(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[[int], Any] | None:
    """Returns the schedule of an optimizer's learning rate; None for a number.

    `Optimizer.learning_rate` is the rate of the present number of updates (keras/src/
    optimizers/base_optimizer.py, `_get_current_learning_rate`).
    """
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return rate
    return None


def reduce_gradients_again(optimizer: keras.optimizers.Optimizer) -> None:
    """Undoes `stop_reducing_gradients` and `count_atomically`."""
    vars(optimizer).pop("_all_reduce_sum_gradients", None)
    vars(optimizer._iterations).pop("assign_add", None)


def adagrad_accumulator(
    optimizer: keras.optimizers.Adagrad, variable: tf.Variable
) -> keras.Variable:
    """Returns the sum of squared gradients that Adagrad keeps for a variable.

    Keras's own `update_step` finds the sum like this, and no public name leads there
    (keras/src/optimizers/adagrad.py).
    """
    return optimizer._accumulators[optimizer._get_variable_index(variable)]


def adam_moments(
    optimizer: keras.optimizers.Adam, variable: tf.Variable
) -> tuple[keras.Variable, keras.Variable]:
    """Returns Adam's means of the gradients of a variable and of their squares.

    Keras's own `update_step` finds them like this, and no public name leads there
    (keras/src/optimizers/adam.py).
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def values_where_they_are(
    result: tf.distribute.experimental.coordinator.RemoteValue,
) -> Any:
    """Returns the result of a scheduled function on its devices, once it is complete.

    `RemoteValue.get` copies the whole result. It therefore fails if the worker dies
    afterwards, and it does not say which worker computed the result
    (tensorflow/python/distribute/coordinator/values.py,
    `RemoteValueImpl._get_values`).
    """
    # Waits for the function, as `get` does.
    return result._get_values()


@contextlib.contextmanager
def own_executor() -> Iterator[None]:
    """Runs what this thread executes in the block where no other thread waits for it.

    Otherwise all threads share the default executor, and the coordinator's threads wait
    until it has nothing to do whenever a closure ends or fails: `executor_scope`
    deletes a wrapper of it, whose `__del__` waits (tensorflow/python/eager/
    executor.py). A function that waits for a worker must not run there: if that worker
    is killed, its closure can neither fail nor be handed on before the function ends.
    """
    with context.executor_scope(executor.new_executor(enable_async=False)):
        yield


def run_after(operation: tf.Operation, other: tf.Operation) -> None:
    """Makes an operation of a graph wait for another one, after both were made.

    `tf.control_dependencies` affects only operations that are made inside its block,
    and affects all of them (tensorflow/python/framework/ops.py,
    `Operation._add_control_input`).
    """
    operation._add_control_input(other)


def keep_sums_in_order() -> None:
    """Makes TensorFlow add three or more tensors in one order. Call it before any work.

    TensorFlow estimates the memory that a function needs. Above 0.8 of a device's
    memory, where a CPU counts as having 256 MiB, TensorFlow rewrites the function's
    sums to additions to a temporary variable, in the order in which the tensors are
    ready. 15 equal calls gave 6 different sums. In loops on several devices training
    ended, because the variable "already exists"
    (tensorflow/core/grappler/optimizers/memory_optimizer.cc, `SchedulingPass`;
    https://github.com/tensorflow/tensorflow/issues/23780, open since 2018).
    """
    # `tf.config.optimizer.set_experimental_options` has no switch for this rewriting.
    config = config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    # The other part of this optimizer stays: it swaps GPU memory out to the host.
    rewriting.memory_optimization = (
        rewriter_config_pb2.RewriterConfig.SWAPPING_HEURISTICS
    )
    context.context()._config = config


def gather_by_key(
    context: tf.distribute.ReplicaContext,
    value: tf.Tensor,
    key: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the tensors of all replicas, one behind the other.

    `ReplicaContext.all_gather` and `all_reduce` take the key of a collective when the
    outermost function is called, so that all iterations of a loop share it
    (tensorflow/python/distribute/cross_device_utils.py, `_next_instance_key`). It
    keeps the shape that a key has first had, and refuses another one (tensorflow/core/
    common_runtime/collective_param_resolver_local.cc, "Shape mismatch"). So a loop
    cannot gather tensors whose shape differs from step to step. `all_gather` also
    gathers the shapes first, by a collective that tensors of one shape do not need. The
    operation is public (`tf.raw_ops.CollectiveGatherV2`). What it shares with the
    strategy's own collectives is not: the group, and the token that orders them on a
    device.

    Args:
      context: Context of the calling replica of a `MultiWorkerMirroredStrategy`.
      value: Tensor, of one shape on all replicas.
      key: int32 scalar, the same on all replicas, and always of tensors of this shape
        and type. From 2 ** 30 on, which TensorFlow does not use: it counts from 100.
        None for TensorFlow's next key, where the shape does not change.
    """
    return _collective(tf.raw_ops.CollectiveGatherV2, context, value, key)


def local_replica(context: tf.distribute.ReplicaContext) -> int:
    """Returns the index of the calling replica in its process.

    The public id is a tensor. `ReplicaContext.devices` fails on all processes but the
    first, because it takes the index among all replicas for one of this process.
    """
    return int(context._replica_id)


def _collective(
    operation: Callable[..., tf.Tensor],
    context: tf.distribute.ReplicaContext,
    value: tf.Tensor,
    key: tf.Tensor | None = None,
) -> tf.Tensor:
    extended = context.strategy.extended
    launcher = extended._cross_device_ops._launchers[local_replica(context)]
    options = launcher._options
    with tf.device(launcher._device):
        return operation(
            input=value,
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=launcher._next_instance_key() if key is None else key,
            ordering_token=[launcher._get_ordering_token()],
            communication_hint=options.implementation.value.lower(),
            timeout_seconds=options.timeout_seconds or 0,
        )


def exchange_rows(context: tf.distribute.ReplicaContext, rows: tf.Tensor) -> tf.Tensor:
    """Returns row r of every replica's tensor on replica r, in the replicas' order.

    Args:
      context: Context of the calling replica of a `MultiWorkerMirroredStrategy`.
      rows: Tensor [replicas, ...] of one shape on all replicas.
    """
    # Added up, they are a reduce-scatter, for which TensorFlow has no implementation on
    # CPUs: `CollectiveReduceScatterV2` exists, and fails there (tensorflow/core/
    # common_runtime/collective_param_resolver_local.cc, `GetCollectiveName`).
    return _collective(tf.raw_ops.CollectiveAllToAllV2, context, rows)


def state_by_weight(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]
) -> list[list[keras.Variable]]:
    """Returns the lists of variables that an optimizer keeps, one for each weight.

    Args:
      optimizer: Optimizer that was built for the weights.
      weights: Trainable variables.
    """
    # Such as momenta, and squares of gradients. They are attributes without public
    # names (keras/src/optimizers/adam.py, `_momentums` and `_velocities`). Scalars,
    # such as the number of updates and the learning rate, are not among them.
    known = {id(variable) for variable in optimizer.variables}
    shapes = [tuple(weight.shape) for weight in weights]
    return [
        list(kept)
        for name, kept in vars(optimizer).items()
        if isinstance(kept, list)
        and name != "_variables"
        and all(id(variable) in known for variable in kept)
        and [tuple(variable.shape) for variable in kept] == shapes
    ]


def make_releasable(variable: keras.Variable) -> tf.Variable:
    """Makes the variable below a Keras variable anew, so that it may hold nothing."""
    # The Keras variable keeps the shape (keras/src/backend/common/variables.py,
    # `_shape`), which checkpoints compare. The new one belongs to no strategy.
    variable._value = tf.Variable(
        variable.numpy(),
        trainable=False,
        name=variable.name,
        shape=tf.TensorShape(None),
    )
    return variable._value


def slice_like(variable: keras.Variable, size: int) -> keras.Variable:
    """Returns a vector that has the type and the names of another variable.

    Args:
      variable: Trainable variable.
      size: Number of elements.
    """
    # Weight decay is excluded by the name of the `tf.Variable` (keras/src/optimizers/
    # base_optimizer.py, `_use_weight_decay`), which may have a scope in front.
    part = keras.Variable(
        tf.zeros([size], variable.dtype), dtype=variable.dtype, name=variable.name
    )
    full_name = variable.value.name.partition(":")[0]
    part._value = tf.Variable(part.value, name=full_name)
    return part


@contextlib.contextmanager
def updates_slices(
    optimizer: keras.optimizers.Optimizer,
    weights: Sequence[tuple[keras.Variable, keras.Variable]],
    state: Sequence[tuple[keras.Variable, tf.Variable]],
) -> Iterator[None]:
    """Makes an optimizer update slices of weights, by slices of its state, in a block.

    Args:
      optimizer: Built optimizer.
      weights: Each trainable variable in order, and its slice.
      state: Variables of the optimizer, and their slices.
    """
    # An optimizer finds the state of a weight by the identity of its `tf.Variable`, and
    # updates by the strategy of its creation (keras/src/backend/tensorflow/
    # optimizer.py, `_var_key` and `_distribution_strategy`). A slice belongs to none.
    attributes, slice_of = vars(optimizer), dict[Any, Any]()
    for weight, part in weights:
        slice_of[optimizer._var_key(weight)] = optimizer._var_key(part)
    excluded = attributes.get("_exclude_from_weight_decay", set())
    instead = {
        "_distribution_strategy": tf.distribute.get_strategy(),
        "_trainable_variables": [part for _, part in weights],
        "_trainable_variables_indices": {
            slice_of[key]: index
            for key, index in optimizer._trainable_variables_indices.items()
        },
        "_exclude_from_weight_decay": {slice_of.get(key, key) for key in excluded},
        "_exclude_from_weight_decay_cache": {},
    }
    former = {name: attributes[name] for name in instead if name in attributes}
    whole = [(variable, variable._value, variable._shape) for variable, _ in state]
    # Not by `setattr`, which would track the slices as parts of the checkpoint.
    attributes.update(instead)
    for variable, part in state:
        variable._value, variable._shape = part, tuple(part.shape)
    try:
        yield
    finally:
        for name in instead:
            attributes.pop(name)
        attributes.update(former)
        for variable, value, shape in whole:
            variable._value, variable._shape = value, shape


def name_operations_after_layers() -> None:
    """Makes the operations of a layer stand in a scope of exactly the layer's name.

    Keras opens a layer's scope twice in each call, once to build it, and TensorFlow
    numbers scopes of one name: layers `dense` and `dense_1` would have the scopes
    `dense_1` and `dense_1_2` in the graph (keras/src/layers/layer.py,
    `Layer.__call__`; the scope is `name_scope._tf_name_scope` of
    keras/src/backend/tensorflow/core.py). A name with a slash at its end opens the same
    scope again. Names of variables stay as they are.
    """
    usual = super(keras.name_scope, keras.name_scope).__enter__

    def enter(scope: Any) -> Any:
        if isinstance(scope.caller, keras.layers.Layer):
            outer = tf.get_current_name_scope()
            path = f"{outer}/{scope.name}/" if outer else f"{scope.name}/"
            scope._tf_name_scope = tf.name_scope(path)
        return usual(scope)

    keras.name_scope.__enter__ = enter


def give_up_connecting(num_tasks: Mapping[str, int], seconds: float) -> None:
    """Limits how long computing processes wait for each other while they connect.

    Without a limit they wait for an hour, in C++ that no Python thread can interrupt,
    for a process that was killed at that moment. Call this function before
    `MultiWorkerMirroredStrategy` is made. That class has no argument for the limit, and
    does not change a configuration that exists already
    (tensorflow/python/distribute/collective_all_reduce_strategy.py,
    `_initialize_multi_worker`).

    Args:
      num_tasks: Number of computing tasks by job. The chief leads if there is one.
      seconds: Time until `tf.errors.DeadlineExceededError` is raised.
    """
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count)
        for job, count in num_tasks.items()
    ]
    # Without a chief, worker 0 leads.
    leader = "chief" if "chief" in num_tasks else "worker"
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        cluster_register_timeout_in_ms=round(1e3 * seconds),
        coordinated_jobs=jobs,
    )


def flat_layers(model: keras.Model) -> Sequence[keras.layers.Layer]:
    """Returns all layers of a model at any depth, with the model itself.

    `Model.layers` lists one level, and omits layers that a user's layer keeps in its
    attributes (keras/src/layers/layer.py, `_flatten_layers`).
    """
    return model._flatten_layers()


@contextlib.contextmanager
def takes_weights(model: keras.Model) -> Iterator[None]:
    """Makes `add_weight` work inside the block for a model that has been built.

    A model class of the user refuses new weights once it is built, and there is no
    public way back. Functional and sequential models never refuse them
    (keras/src/layers/layer.py, `_lock_state`).
    """
    was_locked = model._tracker.locked
    model._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            model._lock_state()


@contextlib.contextmanager
def graphs_collected() -> Iterator[list[Any]]:
    """Fills a list with the graphs of functions as this process's devices run them.

    The list has one GraphDef for each device of each function that runs inside the
    block. A GraphDef contains the functions that the function calls, and every
    operation has its device. The list is filled when the block ends.

    The public ways do not return graphs: `tf.debugging.set_log_device_placement` prints
    from C++ to standard output, and `tf.summary.trace_export` writes the graphs to a
    file that it does not read (tensorflow/python/eager/context.py,
    `Context.enable_graph_collection`).
    """
    graphs: list[Any] = []
    running = context.context()
    running.enable_graph_collection()
    try:
        yield graphs
        graphs.extend(running.export_run_metadata().partition_graphs)
    finally:
        running.disable_graph_collection()


class Call(NamedTuple):
    """One call of a layer in a model made of connected layers.

    Attributes:
      layer: Called layer, or an operation of `keras.ops`.
      inputs: Symbolic tensors.
      outputs: Symbolic tensors.
      is_masked: True if a mask accompanies an output.
    """

    layer: Any
    inputs: Sequence[keras.KerasTensor]
    outputs: Sequence[keras.KerasTensor]
    is_masked: bool


def calls_of(model: keras.Function) -> Sequence[Call]:
    """Returns all calls of layers, each after the calls whose outputs it takes.

    `Function.operations` lists a layer once even if the model calls it several times,
    and does not contain the inputs of a call (keras/src/ops/function.py,
    `_run_through_graph`).
    """
    # Depths count from the outputs, so that the inputs have the largest depth.
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    return [
        Call(
            layer=node.operation,
            inputs=node.input_tensors,
            outputs=node.outputs,
            # Masks are attributes of tensors (keras/src/backend/common/masking.py).
            is_masked=any(hasattr(t, "_keras_mask") for t in node.outputs),
        )
        for node in nodes
        if not node.is_input
    ]


def move_variable(variable: keras.Variable, device: str) -> None:
    """Moves a variable to another device with its present value.

    The choice of the device depends on the whole model, but Keras makes variables while
    a model is put together (keras/src/backend/tensorflow/core.py, `_initialize`).
    """
    with tf.device(device):
        variable._value = tf.Variable(
            variable.value, trainable=variable.trainable, name=variable.name
        )


def variable_below(variable: keras.Variable) -> tf.Variable:
    """Returns the `tf.Variable` below a Keras variable, in a StatelessScope too.

    `Variable.value` asks the scope there (keras/src/backend/common/variables.py).
    """
    return variable._value


def make_anew(variable: keras.Variable) -> None:
    """Makes the variable below a Keras variable once more, with its present value.

    What a user's module has made belongs to no strategy. Made anew in a strategy's
    scope it is one of the strategy's, and layers, which hold the Keras variable, use it
    from then on (keras/src/backend/tensorflow/core.py, `_initialize`).
    """
    value = variable.numpy()
    # A strategy asks for it once for each copy.
    variable._initialize(lambda: tf.constant(value))


def lend_variables(variables: Sequence[keras.Variable]) -> Callable[[], None]:
    """Makes variables anew, and returns a function that restores the former ones.

    The former `tf.Variable`s get the present values then. Functions that were traced
    with them, such as that of `predict`, are valid again.

    Args:
      variables: Keras variables that belong to no strategy.
    """
    former = [variable._value for variable in variables]
    for variable in variables:
        make_anew(variable)

    def give_back() -> None:
        for variable, owned in zip(variables, former, strict=True):
            value = variable.numpy()
            variable._value = owned
            owned.assign(value)

    return give_back


@functools.cache
def hand_over_updates(kind: type[Any]) -> None:
    """Makes optimizers and losses ask a scope of some kind, for good.

    A model's own `train_step` calls its optimizers itself. Inside of such a scope they
    update nothing: the scope's `catch` gets the gradients, and its `scale_loss` the
    loss. Keras keeps the innermost scope of each thread, and has no public name for it
    (keras/src/backend/common/stateless_scope.py).

    Under a strategy of tf.distribute Keras divides the mean of a loss by the number of
    replicas, as if every shard had equally many rows, and multiplies what it reports
    (keras/src/losses/loss.py, `scale_loss_for_distribution`). A mean of the user's own
    is not divided. Inside of such a scope none is.

    Args:
      kind: Subclass of `keras.StatelessScope`.
    """

    def in_scope(original: Callable[..., Any], instead: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def ask(*args: Any, **kwargs: Any) -> Any:
            scope = get_stateless_scope() if in_stateless_scope() else None
            if isinstance(scope, kind):
                return instead(scope, *args, **kwargs)
            return original(*args, **kwargs)

        return ask

    # With the names that a step may give its arguments by.
    def catch(
        scope: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> None:
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        scope.catch(optimizer, grads, trainable_variables)

    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.apply = in_scope(optimizer.apply, catch)
        optimizer.scale_loss = in_scope(
            optimizer.scale_loss, lambda scope, optimizer, loss: scope.scale_loss(loss)
        )
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        original = getattr(loss_module, name)
        setattr(loss_module, name, in_scope(original, lambda scope, value: value))


@contextlib.contextmanager
def variables_as_numbers() -> Iterator[None]:
    """Makes `float` and `int` of a Keras variable work under every strategy.

    A mirrored variable converts to NumPy and not to a number, and callbacks often call
    `float(self.model.optimizer.learning_rate)` (keras/src/backend/common/variables.py,
    `__float__`, calls `float` of the `tf.Variable`).
    """
    kind = keras.Variable
    former = kind.__float__, kind.__int__
    kind.__float__ = lambda variable: float(variable.numpy())
    kind.__int__ = lambda variable: int(variable.numpy())
    try:
        yield
    finally:
        kind.__float__, kind.__int__ = former


_RANDOM_FUNCTIONS = (
    *("uniform", "normal", "truncated_normal", "randint", "categorical", "dropout"),
)


@contextlib.contextmanager
def random_functions_replaced(
    instead: Callable[[str, tf.Tensor], Callable[..., Any] | None],
) -> Iterator[None]:
    """Replaces what draws random numbers in Keras, in the block.

    Layers and `keras.random` draw by the functions of one module (keras/src/backend/
    tensorflow/random.py), with a seed or with a `SeedGenerator`, whose state they
    advance (keras/src/random/seed_generator.py, `draw_seed`).

    Args:
      instead: Function from the name of a function and the seed of a call to another
        function without the argument `seed`; None to call Keras's.
    """

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(original)

        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            given = names.bind(*args, **kwargs).arguments
            seed = draw_seed(given.pop("seed", None))
            other = instead(name, seed)
            return original(**given, seed=seed) if other is None else other(**given)

        return draw

    originals = {name: getattr(random, name) for name in _RANDOM_FUNCTIONS}
    for name, original in originals.items():
        setattr(random, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(random, name, original)


class FitData(NamedTuple):
    """Data of `fit`, as its first step would get it.

    Attributes:
      features: Structure of arrays.
      labels: Structure of arrays; None for none.
      weights: Sample weights, in which class weights are included; None for 1 each.
    """

    features: Any
    labels: Any
    weights: Any


def data_adapter(x: Any, class_weight: Any, shuffle: Any) -> Any:
    """Returns Keras's reader of data of `fit` that are no arrays.

    It makes a tf.data.Dataset of tf.data, PyDataset, torch and Grain sources, and turns
    class weights into sample weights (keras/src/trainers/data_adapters/__init__.py,
    `get_data_adapter`).

    Raises:
      ValueError, TypeError: Keras refuses the data.
    """
    with warnings.catch_warnings():
        # That shuffle is for the data set to do.
        warnings.simplefilter("ignore")
        return data_adapters.get_data_adapter(
            x, class_weight=class_weight, shuffle=shuffle
        )


def whole_arrays(
    x: Any, y: Any, sample_weight: Any, class_weight: Any
) -> FitData | None:
    """Returns all examples of arguments of `fit` as NumPy arrays, or None.

    Keras takes arrays of several libraries, turns class weights into sample weights,
    and converts types (keras/src/trainers/data_adapters/array_data_adapter.py). None:
    the data are no arrays but a data set, a generator or the like.

    Raises:
      ValueError: Keras refuses the arguments.
    """
    if not array_data_adapter.can_convert_arrays((x, y, sample_weight)):
        return None
    num_examples = keras.tree.flatten(x)[0].shape[0]
    adapter = array_data_adapter.ArrayDataAdapter(
        x,
        y,
        sample_weight=sample_weight,
        class_weight=class_weight,
        batch_size=num_examples,
        shuffle=False,
    )
    batch = next(iter(adapter.get_numpy_iterator()))
    return FitData(*data_adapter_utils.unpack_x_y_sample_weight(batch))


def slurm_addresses(
    jobs: Mapping[str, int], first_port: int
) -> tuple[dict[str, tuple[str, ...]], str, int]:
    """Returns addresses by job, the own job and the own index from Slurm's variables.

    The resolver of TensorFlow sorts hosts as text, so that rank 0 of node[9-10] takes
    itself to be on node10. Numbers in front of the names keep Slurm's order
    (tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py,
    `cluster_spec`).

    Raises:
      RuntimeError: The variables describe another number of tasks.
      ValueError: A list of nodes or of tasks per node is malformed.
    """
    resolver = _SlurmResolver(
        jobs=dict(jobs),
        port_base=first_port,
        # Slurm assigns the GPUs. Without these numbers the resolver calls nvidia-smi,
        # and fails on a machine without that program.
        gpus_per_node=sum(jobs.values()),
        gpus_per_task=1,
        auto_set_gpu=False,
    )
    # 000001/host:port without the number and the slash.
    addresses = {
        job: tuple(numbered.partition("/")[2] for numbered in found)
        for job, found in resolver.cluster_spec().as_dict().items()
    }
    return addresses, *resolver.get_task_info()


class _SlurmResolver(tf.distribute.cluster_resolver.SlurmClusterResolver):
    def _resolve_task_configuration(self) -> dict[str, int]:
        found = super()._resolve_task_configuration()
        return {
            f"{position:06d}/{host}": num_tasks
            for position, (host, num_tasks) in enumerate(found.items())
        }


class Compiled(NamedTuple):
    """The arguments of `keras.Model.compile` except a loss.

    Attributes:
      loss_weights: A number, or a list or dict by output; None for 1 each.
      metrics: A list or dict by output; None for none.
      weighted_metrics: The same, for metrics that sample weights apply to.
    """

    loss_weights: Any
    metrics: Any
    weighted_metrics: Any


def compiled_with(model: keras.Model) -> Compiled:
    """Returns the arguments that a model was compiled with.

    `Model.loss` is public. `Model.metrics` is empty until `fit` has run, and
    `get_compile_config` describes a user's functions by names, from which the functions
    cannot be recovered (keras/src/trainers/compile_utils.py, `CompileMetrics` and
    `CompileLoss`).
    """
    loss, metrics = model._compile_loss, model._compile_metrics
    return Compiled(
        loss_weights=None if loss is None else loss._user_loss_weights,
        metrics=None if metrics is None else metrics._user_metrics,
        weighted_metrics=None if metrics is None else metrics._user_weighted_metrics,
    )


class OutputLoss(NamedTuple):
    """The loss of one output of a model, as `fit` resolves it.

    Attributes:
      name: Name of the output, or of the loss where outputs have no names.
      loss: A Keras loss; a function is wrapped as `fit` wraps it.
      weight: Factor of the loss in the total; None for 1.
      compiled: The `CompileLoss` of all outputs.
      position: Position of this loss among the losses of all outputs.
    """

    name: str
    loss: keras.losses.Loss
    weight: float | None
    compiled: Any
    position: int

    def computed_by(self, loss: keras.losses.Loss) -> Callable[..., Any]:
        """Returns the loss of this output, a function of all labels and predictions.

        A third argument are sample weights, as `fit` takes them.

        The rest is Keras's own: pairing labels with outputs, and the dtype.

        Args:
          loss: Takes the place of this output's loss.
        """
        # `copy.copy` of a Keras object would save it to a file and load that.
        alone = object.__new__(type(self.compiled))
        alone.__dict__.update(self.compiled.__dict__)
        flat = alone._flat_losses[self.position]
        alone._flat_losses = [flat._replace(loss=loss, loss_weights=None)]
        # Otherwise each call would add to running means, which are variables.
        alone._metrics = [None]
        return alone


def losses_by_output(
    loss: Any,
    loss_weights: Any,
    output_names: Sequence[str] | None,
    labels: Any,
    predictions: Any,
) -> Sequence[OutputLoss]:
    """Resolves the loss argument of `compile` as `fit` does with its first batch.

    Names such as "crossentropy" are resolved by shapes, functions are wrapped, and
    structures are matched with the model's outputs. No public function does this
    (keras/src/trainers/compile_utils.py, `CompileLoss.call`). Call it outside of a
    strategy's scope: Keras makes a running mean for each of several losses.

    Raises:
      Exception: Any exception that `fit` raises.
    """
    compiled = compile_utils.CompileLoss(loss, loss_weights, output_names=output_names)
    compiled(labels, predictions)
    return [
        OutputLoss(flat.name, flat.loss, flat.loss_weights, compiled, position)
        for position, flat in enumerate(compiled._flat_losses)
    ]


class OutputMetric(NamedTuple):
    """A metric of one output of a model, as `fit` resolves it.

    Attributes:
      metric: A Keras metric; a function is wrapped as `fit` wraps it.
      position: Position of the output among all.
      is_weighted: True if sample weights apply to it.
      compiled: The `CompileMetrics` of all outputs.
    """

    metric: keras.metrics.Metric
    position: int
    is_weighted: bool
    compiled: Any

    def of_output(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        """Returns the labels and predictions of this metric's output."""
        flatten = self.compiled._flatten_y
        return flatten(labels)[self.position], flatten(predictions)[self.position]

    def weights_of_output(self, labels: Any, weights: Any) -> Any:
        """Returns the sample weights that apply to this metric, or None.

        Weights that are given once apply to every output (keras/src/trainers/
        compile_utils.py, `CompileMetrics.update_state`).
        """
        if weights is None or not self.is_weighted:
            return None
        flatten = self.compiled._flatten_y
        flat = flatten(weights)
        is_shared = len(flat) < len(flatten(labels))
        return flat[0 if is_shared else self.position]


def metrics_by_output(
    metrics: Any,
    weighted_metrics: Any,
    output_names: Sequence[str] | None,
    labels: Any,
    predictions: Any,
) -> Sequence[OutputMetric]:
    """Resolves the metrics arguments of `compile` as `fit` does with its first batch.

    "accuracy" is one of three metrics, chosen by shapes. No public function does this
    (keras/src/trainers/compile_utils.py, `CompileMetrics.build`). Call it outside of a
    strategy's scope: metrics have variables.

    Raises:
      Exception: Any exception that `fit` raises.
    """
    compiled = compile_utils.CompileMetrics(
        metrics, weighted_metrics, output_names=output_names
    )
    compiled.build(labels, predictions)
    groups = (compiled._flat_metrics, compiled._flat_weighted_metrics)
    return [
        OutputMetric(metric, position, group is groups[1], compiled)
        for group in groups
        for position, listed in enumerate(group)
        if listed is not None
        for metric in listed.metrics
    ]


def metric_results(
    metrics: Sequence[OutputMetric], state: Sequence[tuple[keras.Variable, Any]]
) -> Mapping[str, Any]:
    """Returns the results of metrics by the names that `evaluate` reports them by.

    Names begin with the output's name where there are several outputs, and end with a
    number where two are alike (keras/src/trainers/compile_utils.py,
    `CompileMetrics.result`).

    Args:
      metrics: All of one call of `metrics_by_output`.
      state: Values in place of the metrics' variables. Other variables count as zero,
        because to read a strategy's variables is a collective call.
    """
    if not metrics:
        return {}
    compiled = metrics[0].compiled
    zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in compiled.variables]
    with keras.StatelessScope([*zeros, *state]):
        return compiled.result()


def function_of_metric(
    metric: keras.metrics.MeanMetricWrapper,
) -> Callable[[Any, Any], tf.Tensor]:
    """Returns the function of labels and predictions that such a metric averages.

    Metrics such as `TopKCategoricalAccuracy` hold their function and its arguments
    without a public name (keras/src/metrics/reduction_metrics.py,
    `MeanMetricWrapper.update_state`).
    """
    return functools.partial(metric._fn, **metric._fn_kwargs)


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a layer's output; None if all parts of the output count.

    `keras.layers.Layer.compute_mask` would need the layer (keras/src/backend/common/
    masking.py, `get_keras_mask`).
    """
    return getattr(tensor, "_keras_mask", None)


def copies_of(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Returns the copies of a variable: one for each device of a mirrored variable."""
    # Only a mirrored variable has `values`.
    return getattr(variable, "values", (variable,))
