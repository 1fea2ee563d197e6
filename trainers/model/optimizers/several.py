"""Models with several optimizers."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.optimizers import is_multi_optimizer, weights_of


class SeveralOptimizers(tf.Module):
    """Optimizers of different weights, with what a training loop asks of one.

    Attributes:
      parts: Optimizers, each with the variables that it updates.
    """

    def __init__(
        self,
        updates: Sequence[tuple[keras.optimizers.Optimizer, Sequence[keras.Variable]]],
        compiled: keras.optimizers.Optimizer,
    ):
        """Joins the optimizers of the updates of a step, of which one may have several.

        Args:
          updates: Optimizer of each update, with the variables that it updates.
          compiled: Optimizer that the model is compiled with; a step may call others.

        Raises:
          UsageError: Two optimizers update one variable.
        """
        super().__init__()
        # Its id, because tf.Module would track a second reference to an optimizer.
        self._compiled = id(compiled)
        united: dict[int, tuple[keras.optimizers.Optimizer, dict[int, Any]]] = {}
        for optimizer, variables in updates:
            _, own = united.setdefault(id(optimizer), (optimizer, {}))
            own.update((id(variable), variable) for variable in variables)
        self.parts = [
            (optimizer, list(own.values())) for optimizer, own in united.values()
        ]
        owned = [id(variable) for _, own in self.parts for variable in own]
        if len(set(owned)) < len(owned):
            raise UsageError(
                "two optimizers update the same weights in one step: give each weight "
                "one optimizer."
            )

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables of all optimizers."""
        return [v for optimizer, _ in self.parts for v in optimizer.variables]

    def apply(
        self, gradients: Sequence[Any], variables: Sequence[keras.Variable]
    ) -> None:
        """Applies gradients; see `apply_gradients`."""
        self.apply_gradients(list(zip(gradients, variables, strict=True)))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, keras.Variable]]
    ) -> None:
        """Applies gradients that are not None, each by the variable's optimizer."""
        by_variable = {
            id(variable): gradient
            for gradient, variable in grads_and_vars
            if gradient is not None
        }
        for optimizer, own in self.parts:
            # A pass has the gradients of one update: the others have nothing to do.
            found = [variable for variable in own if id(variable) in by_variable]
            if found:
                if is_multi_optimizer(optimizer):
                    # It demands all of its variables, also those without a gradient.
                    found = own
                optimizer.apply_gradients([(by_variable.get(id(v)), v) for v in found])

    def finalize_variable_values(self, variables: Sequence[keras.Variable]) -> None:
        """Replaces weights by the averages of the compiled optimizer, as `fit` does."""
        del variables
        for optimizer, _ in self.parts:
            if id(optimizer) == self._compiled:
                # Keras takes the averages by position, in the order of `build`. Calls
                # of a step may have another order, or leave weights out.
                optimizer.finalize_variable_values(weights_of(optimizer))


def parts_of(
    optimizer: keras.optimizers.Optimizer | SeveralOptimizers,
    variables: Sequence[keras.Variable],
) -> Sequence[tuple[keras.optimizers.Optimizer, Sequence[keras.Variable]]]:
    """Returns the optimizers of a model, each with the variables that it updates.

    Optimizers inside of another are before it, once they are built.
    """
    parts: list[Any] = [(optimizer, variables)]
    if isinstance(optimizer, SeveralOptimizers):
        parts = optimizer.parts
    found: list[Any] = []
    for outer, own in parts:
        # An optimizer of no variable is never called.
        inner = [one for one in inner_of(outer) if one.built]
        found += [*((one, weights_of(one)) for one in inner), (outer, own)]
    return found


def inner_of(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Returns optimizers that an optimizer calls.

    They are its attributes, in lists and dictionaries of them, or variables outside of
    its class that the class's methods read. A MultiOptimizer with a function knows its
    own once it is built.
    """
    held = _flat([*vars(optimizer).values(), *_read_by_methods(type(optimizer))])
    found = {
        id(one): one for one in held if isinstance(one, keras.optimizers.Optimizer)
    }
    found.pop(id(optimizer), None)
    return list(found.values())


def _flat(value: Any) -> Iterator[Any]:
    """Yields a value, or the values in a list, a dictionary or the like."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple, set)):
        yield value
        return
    for part in value:
        yield from _flat(part)


def _read_by_methods(kind: type) -> Iterator[Any]:
    """Yields variables of functions and modules that a class of the user's reads."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith("keras.")]
    for method in (value for base in own for value in vars(base).values()):
        if inspect.isfunction(method):
            read = inspect.getclosurevars(method)
            yield from (*read.nonlocals.values(), *read.globals.values())


def variables_of(
    optimizer: keras.optimizers.Optimizer | SeveralOptimizers,
) -> list[keras.Variable]:
    """Returns the variables of all optimizers of a model, each once."""
    parts = parts_of(optimizer, [])
    return list({id(v): v for part, _ in parts for v in part.variables}.values())
