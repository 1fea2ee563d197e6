"""Private names of optimizers."""

import functools
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.optimizers.base_optimizer import BaseOptimizer

from strategies.common.private_apis.variables import make_anew


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


def scale_learning_rate(
    optimizer: keras.optimizers.Optimizer, scaled: Callable[[Any], Any]
) -> None:
    """Scales the learning rate of steps, and not what callbacks read and set.

    `Optimizer.learning_rate` is both (keras/src/optimizers/base_optimizer.py,
    `_get_current_learning_rate`). Steps are graphs, and callbacks are not.
    """
    rate = functools.partial(type(optimizer)._get_current_learning_rate, optimizer)
    optimizer._get_current_learning_rate = lambda: (
        scaled(rate()) if tf.inside_function() else rate()
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
      weights: Variables to build it for, which are of this scope already. An optimizer
        that is built keeps its own, such as weights that were frozen since.
    """
    optimizer._distribution_strategy = tf.distribute.get_strategy()
    # A schedule that replaces a rate removes the rate's variable from this list, and
    # TensorFlow does not save a list after a removal (tensorflow/python/trackable/
    # data_structures.py, `ListWrapper`). The names of the others do not change.
    tracked = optimizer._variables
    tracked._non_append_mutation = tracked._external_modification = False
    tracked._update_snapshot()
    for variable in optimizer.variables:
        make_anew(variable)
    if not optimizer.built:
        optimizer.build(list(weights))
    find_weights_again(optimizer)


def find_weights_again(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes a built optimizer know its weights by the present variables below them.

    These are of this scope, and so are the variables below the optimizer's own.
    """
    optimizer._distribution_strategy = tf.distribute.get_strategy()
    optimizer._trainable_variables_indices = {
        optimizer._var_key(weight): index
        for index, weight in enumerate(weights_of(optimizer))
    }
    if is_multi_optimizer(optimizer):
        # Its `apply` finds the optimizer of a variable by the same keys.
        optimizer._var_to_optimizer_idx = {
            optimizer._var_key(weight): place
            for place, inner in enumerate(optimizer.optimizers)
            for weight in weights_of(inner)
        }


def is_multi_optimizer(optimizer: Any) -> bool:
    """Returns whether an optimizer divides weights among others."""
    return isinstance(optimizer, keras.optimizers.MultiOptimizer)


def weights_of(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Returns the variables that an optimizer was built for, in its order.

    The state of a weight has the same place in the optimizer's lists (keras/src/
    optimizers/base_optimizer.py, `build`).
    """
    return optimizer._trainable_variables


def loss_scale_variables(
    optimizer: keras.optimizers.LossScaleOptimizer, weights: Sequence[keras.Variable]
) -> tuple[keras.Variable, keras.Variable]:
    """Returns the scale and the count of finite steps, made anew in this scope."""
    if not optimizer.built:
        optimizer.build(list(weights))
    for variable in (optimizer.dynamic_scale, optimizer.step_counter):
        # With Keras's "none", a replica may not assign a mirrored variable
        # (keras/src/optimizers/loss_scale_optimizer.py, `build`).
        variable._aggregation = "only_first_replica"
        make_anew(variable)
    return optimizer.dynamic_scale, optimizer.step_counter


class _KeysOf(Set[Any]):
    """Keys by which an optimizer knows variables at present."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]
    ):
        self._optimizer = optimizer
        self._variables = variables

    def __contains__(self, key: object) -> bool:
        return any(key == present for present in self)

    def __iter__(self) -> Iterator[Any]:
        return map(self._optimizer._var_key, self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def keep_excluded_from_weight_decay(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Makes `exclude_from_weight_decay(var_list=...)` hold for variables made anew.

    Keras keeps keys of the `tf.Variable`s (keras/src/optimizers/base_optimizer.py,
    `_exclude_from_weight_decay`), and a strategy trains other ones.
    """
    keys = getattr(optimizer, "_exclude_from_weight_decay", ())
    excluded = [v for v in variables if optimizer._var_key(v) in keys]
    if excluded:
        optimizer._exclude_from_weight_decay = _KeysOf(optimizer, excluded)


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


def counter_of(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Returns the number of updates by which an optimizer asks its schedule.

    `Optimizer.iterations` is that number divided by `gradient_accumulation_steps`
    (keras/src/optimizers/base_optimizer.py, `_get_current_learning_rate`).
    """
    return optimizer._iterations


def restore_methods(optimizer: keras.optimizers.Optimizer) -> None:
    """Undoes `stop_reducing_gradients`, `count_atomically`, `scale_learning_rate`."""
    vars(optimizer).pop("_all_reduce_sum_gradients", None)
    vars(optimizer).pop("_get_current_learning_rate", None)
    vars(optimizer._iterations).pop("assign_add", None)


def hand_over_updates(kind: type[Any]) -> None:
    """Makes optimizers ask a scope of some kind, for good.

    A model's own `train_step` calls its optimizers itself. Inside of such a scope they
    update nothing: the scope's `catch` gets the gradients, and its `scale_loss` the
    loss. Keras keeps the innermost scope of each thread, and has no public name for it
    (keras/src/backend/common/stateless_scope.py). A class that overrides a method gets
    the gradients where the update is made, which are then of the global batch.

    Args:
      kind: Subclass of `keras.StatelessScope`.
    """

    def in_scope(original: Callable[..., Any], instead: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def ask(*args: Any, **kwargs: Any) -> Any:
            scope = get_stateless_scope()
            if isinstance(scope, kind):
                return instead(scope, *args, **kwargs)
            return original(*args, **kwargs)

        ask.asks_for = kind  # type: ignore[attr-defined]
        return ask

    # With the names that a step may give its arguments by.
    def catch(
        scope: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> None:
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        scope.catch(optimizer, grads, trainable_variables)

    def catch_pairs(scope: Any, optimizer: Any, grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        scope.catch(optimizer, gradients, variables)
        return optimizer._iterations

    def scale(scope: Any, optimizer: Any, loss: Any) -> Any:
        return scope.scale_loss(loss)

    instead: dict[str, Callable[..., Any]] = {
        "apply": catch,
        "apply_gradients": catch_pairs,
        "scale_loss": scale,
    }
    # A program may have made further classes since the last scope.
    for optimizer in _with_subclasses(BaseOptimizer):
        for name, method in instead.items():
            # Inherited ones are asked in the class that has them.
            original = vars(optimizer).get(name)
            if original and getattr(original, "asks_for", None) is not kind:
                setattr(optimizer, name, in_scope(original, method))


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yields a class and all classes that are derived from it."""
    yield kind
    for below in kind.__subclasses__():
        yield from _with_subclasses(below)
