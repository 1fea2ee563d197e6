"""Private names of graphs and their operations."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import (
    get_stateless_scope,
    in_stateless_scope,
)
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import config as tf_config


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


def read_the_clock_despite_determinism() -> None:
    """Gives TF_DETERMINISTIC_OPS no effect: it forbids `tf.timestamp`.

    TensorFlow reads the variable when it first needs it, and then no more. Its public
    API can only enable determinism (tensorflow/core/util/determinism.cc).
    """
    tf_config.disable_op_determinism()


def run_after(operation: tf.Operation, other: tf.Operation) -> None:
    """Makes an operation of a graph wait for another one, after both were made.

    `tf.control_dependencies` affects only operations that are made inside its block,
    and affects all of them (tensorflow/python/framework/ops.py,
    `Operation._add_control_input`).
    """
    operation._add_control_input(other)


@functools.cache
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


def counted_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose traces TensorFlow counts apart from all others.

    It adds up the traces of functions with one code, such as the loops of several
    models, and warns of five (tensorflow/python/eager/polymorphic_function/
    polymorphic_function.py, `_get_key_for_call_stats`). A partial has no code.
    """
    return functools.partial(function)


def flat_call(function: Any) -> Callable[[Sequence[tf.Tensor]], Any]:
    """Returns a function that calls a concrete function with a flat list of tensors.

    The public call binds its arguments to a signature and casts each of them again
    (tensorflow/python/eager/polymorphic_function/concrete_function.py,
    `_call_with_structured_signature`), which took 0.4 of the 2.6 milliseconds of 50
    steps of a 5-10-2 network.
    """
    call = function.inference_fn.call_preflattened
    return lambda tensors: call([*tensors, *function.captured_inputs])


@functools.cache
def inline_functions_in_stateless_scopes() -> None:
    """Makes functions of TensorFlow a part of the graph that calls them, in scopes.

    A model may decorate `call`, `train_step` or a part of one with `tf.function`. A
    `keras.StatelessScope` keeps the tensors that variables are assigned, and tensors of
    an inner function's graph cannot be read outside of it ("is out of scope").
    `tf.config.run_functions_eagerly` would call the Python function without AutoGraph
    (tensorflow/python/eager/polymorphic_function/polymorphic_function.py, `__call__`).
    """
    kind = type(tf.function(lambda: None))
    usual = kind.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        # An eager call makes the graph that it needs, as `tf.vectorized_map` does.
        is_apart = tf.executing_eagerly() or not in_stateless_scope()
        if is_apart or _needs_xla(function):
            return usual(function, *args, **kwargs)
        return python_of(function)(*args, **kwargs)

    kind.__call__ = call


def _needs_xla(function: Any) -> bool:
    """Returns whether CPUs have a function, an operation of Keras, only in XLA.

    Keras lets XLA compile grouped convolutions, and those in three dimensions with
    channels first (keras/src/backend/tensorflow/nn.py, `conv`): CPUs have no other
    kernels for their gradients. Such a function assigns no variable.
    """
    module = getattr(function.python_function, "__module__", None) or ""
    return bool(function._jit_compile) and module.startswith("keras.src.backend.")


@functools.cache
def show_one_replica_in_stateless_scopes() -> None:
    """Makes strategies have one replica for code that runs in a `StatelessScope`.

    `tf.nn.compute_average_loss` and `tf.nn.scale_regularization_loss` divide by the
    number of replicas (tensorflow/python/ops/nn_impl_distribute.py), and so does Keras
    (keras/src/losses/loss.py, `scale_loss_for_distribution`), for a strategy that adds
    up gradients of equal shards. Here a step computes the mean over its shard, whose
    fraction of the global batch is multiplied later. A given `global_batch_size` is
    taken times that `fraction` of the scope, as far as the scope has one.
    """
    usual = tf.distribute.Strategy.num_replicas_in_sync.fget

    def num_replicas_in_sync(strategy: tf.distribute.Strategy) -> int:
        return 1 if in_stateless_scope() else usual(strategy)

    tf.distribute.Strategy.num_replicas_in_sync = property(num_replicas_in_sync)
    average = tf.nn.compute_average_loss

    @functools.wraps(average)
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> tf.Tensor:
        loss = average(per_example_loss, sample_weight, global_batch_size)
        fraction = getattr(get_stateless_scope(), "fraction", None)
        if global_batch_size is None or fraction is None:
            return loss
        return loss / tf.cast(fraction, loss.dtype)

    for names in (tf.nn, tf.compat.v2.nn):
        names.compute_average_loss = compute_average_loss


def python_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python function below a `tf.function`, with AutoGraph if that has it.

    Any other function is returned as it is. AutoGraph converts nothing where the
    surrounding function is without it (tensorflow/python/eager/polymorphic_function/
    tracing_compilation.py, `_create_concrete_function`).
    """
    if not isinstance(function, type(tf.function(lambda: None))):
        return function
    python, options = function.python_function, function._experimental_autograph_options
    status = ag_ctx.Status.DISABLED
    if function._autograph:
        python = autograph_util.py_func_from_autograph(python, options)
        status = ag_ctx.Status.ENABLED

    def call(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status, options):
            return python(*args, **kwargs)

    return call


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
