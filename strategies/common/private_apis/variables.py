"""Private names of variables."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.ops.resource_variable_ops import (
    BaseResourceVariable,
    ResourceVariable,
)

from strategies.common.private_apis.replaced import replaced


def copies_of(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Returns the copies of a variable: one for each device of a mirrored variable."""
    # Only a mirrored variable has `values`.
    return getattr(variable, "values", (variable,))


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
    give_back = put_back_later(variables)
    for variable in variables:
        make_anew(variable)
    return give_back


def put_back_later(variables: Sequence[keras.Variable]) -> Callable[[], None]:
    """Returns a function that puts the present `tf.Variable`s back, with later values.

    They get the values that the Keras variables have when the function is called.
    """
    below = [variable._value for variable in variables]

    def put_back() -> None:
        for variable, former in zip(variables, below, strict=True):
            value = variable.numpy()
            variable._value = former
            former.assign(value)

    return put_back


def move_variable(variable: keras.Variable, device: str) -> None:
    """Moves a variable to another device with its present value.

    The choice of the device depends on the whole model, but Keras makes variables while
    a model is put together (keras/src/backend/tensorflow/core.py, `_initialize`).
    """
    with tf.device(device):
        variable._value = tf.Variable(
            variable.value, trainable=variable.trainable, name=variable.name
        )


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


@functools.cache
def refuse_plain_variables_in_steps(
    error_of: Callable[[tf.Variable], Exception],
    error_in_update: Callable[[tf.Variable], Exception],
) -> None:
    """Makes it an error to assign a `tf.Variable` where replicas would share it.

    In a `keras.StatelessScope` the scope keeps what Keras variables are assigned, and
    each replica has its own values. A plain `tf.Variable` would be written by all
    replicas of a process and would be in no checkpoint: two replicas counted every step
    twice, without a word. So they did in the update of the weights, outside of a scope.
    """

    def refusing(usual: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(usual)
        def assign(variable: Any, *args: Any, **kwargs: Any) -> Any:
            if in_stateless_scope():
                error = error_of(variable)
                # Keras would put the arguments of the layer around it (keras/src/utils/
                # traceback_utils.py, `inject_argument_info_in_traceback`).
                error._keras_call_info_injected = True  # type: ignore[attr-defined]
                raise error
            if _is_shared_by_replicas(variable):
                raise error_in_update(variable)
            return usual(variable, *args, **kwargs)

        return assign

    # The class of most variables overrides these methods, and calls them.
    for kind in (BaseResourceVariable, ResourceVariable):
        for name, method in list(vars(kind).items()):
            if name.startswith(("assign", "scatter_", "batch_scatter_")):
                setattr(kind, name, refusing(method))


def _is_shared_by_replicas(variable: tf.Variable) -> bool:
    """Returns whether each replica of this process is about to assign a variable.

    Copies that belong to one replica know what they are copies of (tensorflow/python/
    distribute/values.py, `DistributedVariable.__init__`). Code that updates a copy is
    in no replica context (distribute_lib.py, `UpdateContext`).
    """
    if not tf.distribute.has_strategy():
        return False
    strategy = tf.distribute.get_strategy()
    is_in_update = distribute_lib.get_update_replica_id() is not None
    return (
        (is_in_update or not tf.distribute.in_cross_replica_context())
        and len(strategy.extended.worker_devices) > 1
        and not hasattr(variable.handle, "_distributed_container")
    )


def variables_as_numbers() -> AbstractContextManager[None]:
    """Makes `float` and `int` of a Keras variable work under every strategy.

    A mirrored variable converts to NumPy and not to a number, and callbacks often call
    `float(self.model.optimizer.learning_rate)` (keras/src/backend/common/variables.py,
    `__float__`, calls `float` of the `tf.Variable`).
    """
    kinds: dict[str, Callable[[Any], float]] = {"__float__": float, "__int__": int}
    return replaced(
        keras.Variable,
        kinds,
        lambda name, _: lambda variable: kinds[name](variable.numpy()),
    )
