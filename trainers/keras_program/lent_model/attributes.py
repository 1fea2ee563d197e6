"""Attributes of objects of a program, which callbacks change on the chief alone."""

import functools
import hashlib
import inspect
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.common.private_apis.models import flat_layers, set_trainable
from strategies.common.private_apis.optimizers import schedule_of
from trainers.model.optimizers.several import inner_of, parts_of
from trainers.run_dir.encoding import as_key, decoded, encoded
from trainers.user_code.own_step.reported import all_metrics

_TRAINABLE = "_trainable"


class Attributes:
    """Attributes of some objects, as they were last and as they are."""

    def __init__(self, objects: Sequence[Any], kept: Callable[[Any], dict[str, Any]]):
        """Looks at the objects; `kept` returns attributes of one by their names."""
        self._objects, self._kept = objects, kept
        self._before: dict[tuple[int, str], Any] = {}
        self.changed()

    def changed(self) -> dict[str, Any]:
        """Returns what has changed since the last call, as JSON values for `adopt`."""
        found: dict[str, Any] = {}
        for index, one in enumerate(self._objects):
            changed = found[name_of(index, one)] = {}
            for name, value in self._kept(one).items():
                now = _fingerprint(value)
                if self._before.get((index, name), ()) != now:
                    changed.update((name, part) for part in encoded(value))
                self._before[index, name] = now
        return found


def adopt(objects: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Sets attributes to JSON values by `name_of` objects; others are not used."""
    for index, one in enumerate(objects):
        for name, value in state.get(name_of(index, one), {}).items():
            if name == _TRAINABLE:
                set_trainable([(one, value)])
            elif "/" not in name:  # Beside attributes, the size of a file.
                set_attribute(one, name, decoded(value))


def name_of(index: int, one: Any) -> str:
    """Returns the name of an object, by its place among others and its class."""
    return f"{index}/{type(one).__name__}"


def objects_of(model: keras.Model, optimizer: Any, data: Sequence[Any]) -> list[Any]:
    """Returns the objects that steps of a model read, and data sets with attributes."""
    optimizers = [one for one, _ in parts_of(optimizer, [])]
    compiled = [getattr(model, name, None) for name in ("optimizer", "loss")]
    given = [*optimizers, *map(schedule_of, optimizers), *tf.nest.flatten(compiled)]
    given += [one for one in data if isinstance(one, keras.utils.PyDataset)]
    found = [*flat_layers(model), *(one for one in given if hasattr(one, "__dict__"))]
    return list({id(one): one for one in (*found, *all_metrics(model))}.values())


def plain_attributes(one: Any) -> dict[str, Any]:
    """Returns the attributes of an object; of data, only numbers and texts."""
    left_out = private_names(type(one).__mro__)
    found = {name: x for name, x in vars(one).items() if name not in left_out}
    if isinstance(one, keras.utils.PyDataset):
        kinds = (bool, int, float, str, np.generic, type(None))
        return {name: x for name, x in found.items() if isinstance(x, kinds)}
    if isinstance(one, keras.layers.Layer):
        found[_TRAINABLE] = one.trainable
    return found


@functools.cache
def private_names(bases: tuple[type, ...]) -> Collection[str]:
    """Returns the private names that Keras's and TensorFlow's classes use."""
    libraries = ("keras.", "tensorflow.")
    of_libraries = [base for base in bases if base.__module__.startswith(libraries)]
    parts = [part for base in of_libraries for part in vars(base).values()]
    parts += [part.fset for part in parts if isinstance(part, property)]
    functions = filter(inspect.isfunction, map(inspect.unwrap, parts))
    names = {name for function in functions for name in function.__code__.co_names}
    return {name for name in names if name.startswith("_")}


def trained_parts(model: keras.Model) -> dict[str, str]:
    """Returns what steps of a model are traced from, as texts by their names."""
    given = model.optimizer
    optimizers = [] if given is None else [*inner_of(given), given]
    found = {"optimizer": " and ".join(type(one).__name__ for one in optimizers)}
    if model.built:
        weights = [(w.shape, w.dtype, bool(w.trainable)) for w in model.weights]
        digest = hashlib.sha256(repr(weights).encode()).hexdigest()
        found["weights (shapes, types, trainable)"] = digest
    for index, one in enumerate(optimizers):
        for name, value in plain_attributes(one).items():
            # Each object of a process has another name, and a callback may build one.
            if name not in ("name", "built"):
                found[f"{name} of {name_of(index, one)}"] = repr(encoded(value))
    return found


def _fingerprint(value: Any) -> Any:
    """Returns what differs for another value; for an array it is a digest."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return encoded(value)
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return value.dtype, value.shape, hashlib.sha256(content).digest()


def set_attribute(one: Any, name: str, value: Any) -> None:
    """Sets an attribute; the program may hold a list, set or dictionary too."""
    present = getattr(one, name, None)
    if isinstance(present, dict) and isinstance(value, dict):
        present.clear()
        present.update(value)
    elif isinstance(present, set) and isinstance(value, list):
        present.clear()
        present.update(map(as_key, value))
    elif isinstance(present, (list, deque)) and isinstance(value, list):
        present.clear()
        present.extend(value)
    elif isinstance(present, tuple) and isinstance(value, list):
        # A tuple is a list in JSON.
        setattr(one, name, getattr(present, "_make", tuple)(value))
    else:
        setattr(one, name, value)
