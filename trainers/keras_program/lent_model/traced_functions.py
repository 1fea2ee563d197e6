"""Functions that Keras has traced, such as that of `predict`.

A function has the `tf.Variable`s of its trace: the program's, or during a `fit` the
strategy's. Models that share layers with the trained one have such functions as well.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras

from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.replaced import replaced

_KINDS = ("train_function", "test_function", "predict_function")


class TracedModels:
    """Models of a program that have traced a function."""

    def __init__(self) -> None:
        # By id, because a class of the program may define equality.
        self._models: weakref.WeakValueDictionary[int, keras.Model] = (
            weakref.WeakValueDictionary()
        )

    def noted(self) -> AbstractContextManager[None]:
        """Notes the models that trace a function in the block, which runs a program."""

        def noting(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(make)
            def call(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
                self._models[id(model)] = model
                return make(model, *args, **kwargs)

            return call

        return replaced(keras.Model, [f"make_{kind}" for kind in _KINDS], noting)

    def beside(self, model: keras.Model) -> list[keras.Model]:
        """Returns models outside of `model` that have some of its variables."""
        inside = {id(layer) for layer in flat_layers(model)}
        lent = {id(variable) for variable in model.variables}
        return [
            other
            for other in list(self._models.values())
            if id(other) not in inside
            and any(id(variable) in lent for variable in other.variables)
        ]


class TracedFunctions:
    """Traced functions of a model, of those inside of it and of those beside it."""

    def __init__(self, model: keras.Model, traced: TracedModels):
        self._model = model
        self._traced = traced
        # Of the variables that are not in place, by model. A function keeps its model,
        # so that no other one can get its id.
        self._others: dict[int, tuple[Any, ...]] = {}

    def exchange(self) -> None:
        """Puts the functions of the other variables in place; None for no trace."""
        others, self._others = self._others, {}
        inside = [x for x in flat_layers(self._model) if isinstance(x, keras.Model)]
        for model in (*inside, *self._traced.beside(self._model)):
            self._others[id(model)] = tuple(getattr(model, kind) for kind in _KINDS)
            functions = others.get(id(model), (None,) * len(_KINDS))
            for kind, function in zip(_KINDS, functions, strict=True):
                setattr(model, kind, function)
            # An optimizer has other variables after each `fit`. A model that is not
            # compiled has none.
            optimizer = getattr(model, "optimizer", None)
            if optimizer is self._model.optimizer or _is_in(model, inside):
                model.train_function = None


def _is_in(model: keras.Model, models: Sequence[keras.Model]) -> bool:
    return any(model is one for one in models)
