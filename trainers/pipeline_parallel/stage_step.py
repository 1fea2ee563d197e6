"""The work of one stage on one micro-batch, and its duration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from models.base import Objective
from strategies.common.types import Batch
from strategies.inner_loop.reduction import sum_gradients
from trainers.model.layer_state import LayerState
from trainers.model.replica_invariant_dropout import ReplayableDropout
from trainers.model.rng import keyed_states
from trainers.model.train_step import (
    added_losses,
    in_proportion,
    reported,
    weighted_sums,
)
from trainers.pipeline_parallel.stages import Stage

# By name of a tensor: the gradients that stages which took it have sent back.
Cotangents = dict[int, list[tf.Tensor]]


class Made(NamedTuple):
    """What a stage makes of a micro-batch.

    Attributes:
      outputs: in the order of the stage's.
      share: of the loss: its part of (sum of losses / examples in the global batch).
      sums: named numerators, `examples` in the last stage alone.
      state: shares of what its layers wrote.
    """

    outputs: list[tf.Tensor]
    share: tf.Tensor
    sums: dict[str, tf.Tensor]
    state: dict[str, Any]


class Forward:
    """A stage's function from its inputs to what it makes of them."""

    def __init__(
        self,
        stage: Stage,
        objective: Objective,
        layer_state: LayerState,
        seed_states: list[keras.Variable],
        seed: int,
        dropout: ReplayableDropout | None,
    ):
        """Keeps what `PipelineStep` was given, for one stage."""
        self._stage = stage
        self._objective = objective
        self._layer_state = layer_state
        self._seed_states = seed_states
        self._seed = seed
        self._dropout = dropout
        self.__name__ = f"stage_{stage.index}"

    def __call__(self, inputs: list[tf.Tensor], part: Batch) -> Made:
        # Nobody needs the gradient of features, and a first convolution's is costly.
        inputs = [
            tensor if name in self._stage.received else tf.stop_gradient(tensor)
            for name, tensor in zip(self._stage.inputs, inputs, strict=True)
        ]
        keyed = keyed_states(self._seed_states, self._seed, part)
        sums: dict[str, tf.Tensor] = {}
        loss = tf.zeros([], keras.config.floatx())
        with keras.StatelessScope(keyed, collect_losses=True) as scope:
            with self._replayed_dropout(part):
                outputs = self._stage.run(inputs, training=True)
            if self._stage.is_last:
                values = self._objective.of_predictions(
                    part.labels, outputs[0], part.global_size
                )
                sums = weighted_sums(values, part)
                loss = sums["loss"]
            added = added_losses(self._stage.trainable_variables, scope)
            loss += in_proportion(added, part, loss.dtype)
        written = self._layer_state.written(scope, [])
        self._layer_state.check_keeps_weights(written, "--strategy=model_parallel")
        sums["loss"] = loss
        sums = reported(sums, part)
        if not self._stage.is_last:
            del sums["examples"]
        return Made(
            outputs=outputs,
            share=loss / tf.cast(part.global_size, loss.dtype),
            sums=sums,
            state=self._layer_state.shares(written, part),
        )

    def _replayed_dropout(self, part: Batch) -> Any:
        if self._dropout is None:
            return contextlib.nullcontext()
        return self._dropout.replayed(part)


class _UnderWay(NamedTuple):
    """A micro-batch that has gone forward through a stage and not yet backward."""

    tape: tf.GradientTape
    received: dict[int, tf.Tensor]
    made: Made


class StageRun:
    """One step of one stage: its pieces, one after another.

    A piece begins when what it takes is on the stage's device and the piece before it
    has ended, and ends when all that it makes is computed. Moving tensors between
    devices is idle time; waiting for a core of the processor is not.

    Attributes:
      stage: whose work this is.
      gradients: the sum over micro-batches, by reference of the variable.
      sums: of each micro-batch.
      state: of each micro-batch.
      intervals: beginning and end of each piece, in seconds.
    """

    def __init__(
        self,
        stage: Stage,
        forward: Callable[..., Made],
        clock: StageClock,
        sparse_gradients: bool,
    ):
        self.stage = stage
        self.gradients: dict[Any, Any] = {}
        self.sums: list[dict[str, tf.Tensor]] = []
        self.state: list[dict[str, Any]] = []
        self.intervals: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._forward = forward
        self._clock = clock
        self._sparse_gradients = sparse_gradients
        self._weights = [v.value for v in stage.model.trainable_variables]
        self._under_way: dict[int, _UnderWay] = {}

    def forward(self, index: int, part: Batch, values: dict[int, tf.Tensor]) -> None:
        """Adds its outputs to the values of a micro-batch.

        Args:
          index: of the micro-batch.
          part: the micro-batch.
          values: tensors that this stage may take, by name.
        """
        labels = part.labels if self.stage.is_last else ()
        part = part._replace(features=(), labels=labels)
        start, inputs = self._begin([values[name] for name in self.stage.inputs])
        with (
            tf.control_dependencies([start]),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            received = {
                name: tensor
                for name, tensor in zip(self.stage.inputs, inputs, strict=True)
                if name in self.stage.received
            }
            tape.watch([*self._weights, *received.values()])
            made = self._forward(inputs, part)
        self._end(start, made)
        self._under_way[index] = _UnderWay(tape, received, made)
        self.sums.append(made.sums)
        self.state.append(made.state)
        values.update(zip(self.stage.outputs, made.outputs, strict=True))

    def backward(
        self, index: int, cotangents: Cotangents, scale: tf.Tensor | None
    ) -> None:
        """Adds to the gradients of weights and of what this stage has taken.

        Args:
          index: of the micro-batch, which has been through `forward`.
          cotangents: gradients of tensors of this micro-batch, by name.
          scale: Factor of the loss that is differentiated; None for one.
        """
        tape, received, made = self._under_way.pop(index)
        targets, seeds = self._targets(made, cotangents)
        start, seeds = self._begin(seeds)
        # One, and not known before the clock has been read.
        one = tf.cast(start > 0, made.share.dtype)
        seeds.append(one if scale is None else one * tf.cast(scale, one.dtype))
        gradients = tape.gradient(
            [*targets, made.share], [*self._weights, *received.values()], seeds
        )
        changed = self._add_up(gradients[: len(self._weights)])
        sent = {
            name: tf.convert_to_tensor(gradient)
            for name, gradient in zip(
                received, gradients[len(self._weights) :], strict=True
            )
            if gradient is not None
        }
        self._end(start, [changed, sent])
        for name, gradient in sent.items():
            cotangents.setdefault(name, []).append(gradient)

    def _targets(
        self, made: Made, cotangents: Cotangents
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Outputs that later stages have sent gradients of, and these."""
        pairs = [
            (output, tf.add_n(cotangents[name]))
            for name, output in zip(self.stage.outputs, made.outputs, strict=True)
            if name in cotangents
        ]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _add_up(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds one micro-batch's gradients; returns the sums."""
        for variable, gradient in zip(self._weights, gradients, strict=True):
            if gradient is None:
                continue
            if not self._sparse_gradients:
                gradient = tf.convert_to_tensor(gradient)
            before = self.gradients.get(variable.ref())
            parts = [gradient] if before is None else [before, gradient]
            self.gradients[variable.ref()] = sum_gradients(parts)
        return list(self.gradients.values())

    def _begin(self, tensors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The time when tensors are here and the stage is free, and the tensors."""
        here = [tf.identity(tensor) for tensor in tensors]
        before = [end for _, end in self.intervals[-1:]]
        start = self._clock.now([*here, *before])
        with tf.control_dependencies([start]):
            return start, [tf.identity(tensor) for tensor in here]

    def _end(self, start: tf.Tensor, made: Any) -> None:
        end = self._clock.now([start, *tf.nest.flatten(made)])
        self.intervals.append((start, end))


class StageClock:
    """Tells the time on a stage's device.

    `tf.timestamp` in the graph of a step would put the stages one after another:
    TensorFlow runs operations that have a state and use no resource in the order in
    which they were made, on whatever devices. One that reads a resource only waits for
    those that write to it (tensorflow/python/framework/auto_control_deps.py). So this
    clock reads a variable of its own, to which nobody writes.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._variable = tf.Variable(0.0, trainable=False, name="clock")
        self._read = tf.function(self._timestamp, autograph=False)

    def now(self, after: Sequence[Any]) -> tf.Tensor:
        """Seconds, float64 scalar, when all of some tensors are computed.

        To depend on a call of a function (`tf.control_dependencies`) is to wait for its
        side effects alone, so that this takes a number of each tensor.

        Args:
          after: numbers of any type and shape, and IndexedSlices.
        """
        numbers = tf.concat([_first_number(value) for value in after], axis=0)
        return self._read(tf.reduce_sum(numbers))

    def _timestamp(self, computed: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([computed, self._variable.read_value()]):
            return tf.timestamp()


def _first_number(value: Any) -> tf.Tensor:
    """Shape [1], or [0] if there is none."""
    numbers = value.values if isinstance(value, tf.IndexedSlices) else value
    return tf.cast(tf.reshape(numbers, [-1])[:1], tf.float32)
