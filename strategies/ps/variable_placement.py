"""Spreads variables over parameter servers so that each holds about as many bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class BySize:
    """Places each new variable on the device that holds the fewest bytes so far.

    TensorFlow's own placement takes turns whatever a variable's size: with one
    embedding table among biases, one server would hold nearly everything.
    """

    def __init__(self, devices: Sequence[str]):
        self._bytes = dict.fromkeys(devices, 0)

    @property
    def bytes_by_device(self) -> dict[str, int]:
        return dict(self._bytes)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Variables made inside are placed, unless they are to be with another.

        An optimizer's slots are made beside the variable they belong to; they add to
        that device's bytes.
        """
        with tf.variable_creator_scope(self._create):
            yield

    def _create(self, next_creator: Any, **settings: Any) -> tf.Variable:
        value = settings.get("initial_value")
        if callable(value):
            value = value()
        value = tf.convert_to_tensor(value, dtype=settings.get("dtype"))
        settings["initial_value"] = value
        chosen = self._already_chosen() or min(self._bytes, key=self._bytes.__getitem__)
        with tf.device(chosen):
            variable = next_creator(**settings)
        self._bytes[chosen] += int(np.prod(value.shape)) * value.dtype.size
        return variable

    def _already_chosen(self) -> str | None:
        """The server that an enclosing scope has asked for, such as a colocation.

        There is no public name for the device in force; a tensor made here has it.
        """
        current = tf.DeviceSpec.from_string(tf.zeros([]).device)
        for device in self._bytes:
            spec = tf.DeviceSpec.from_string(device)
            if (spec.job, spec.task) == (current.job, current.task):
                return device
        return None
