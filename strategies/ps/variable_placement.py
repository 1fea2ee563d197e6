"""Placement of variables on parameter servers, balanced by size."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf


class BySize:
    """Placement of each new variable on the device with the fewest bytes so far.

    TensorFlow's own placement takes devices in turn, regardless of a variable's size:
    with one embedding table among biases, one server would hold nearly all bytes.
    """

    def __init__(self, devices: Sequence[str]):
        self._bytes = dict.fromkeys(devices, 0)

    def scope(self) -> AbstractContextManager[None]:
        """Places variables that are made inside the block.

        Variables that have to be with another variable, such as the slots of an
        optimizer, stay with it. They add to the bytes of its device.
        """
        return tf.variable_creator_scope(self._create)

    def _create(self, next_creator: Any, **settings: Any) -> tf.Variable:
        value = settings.get("initial_value")
        # The value is needed now: its size decides the device.
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
        """Returns the server of an enclosing scope, such as a colocation, or None."""
        # There is no public name for the present device; a tensor made here has it.
        current = tf.DeviceSpec.from_string(tf.zeros([]).device)
        for device in self._bytes:
            spec = tf.DeviceSpec.from_string(device)
            if (spec.job, spec.task) == (current.job, current.task):
                return device
        return None
