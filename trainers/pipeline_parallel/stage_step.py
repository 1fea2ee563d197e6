"""Work of one stage on one micro-batch, and its duration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from models.objective import Objective
from strategies.common.private_apis.models import packed_output
from strategies.common.types import Batch
from strategies.inner_loop.reduction import sum_gradients
from trainers.model.layer_state import LayerState
from trainers.model.loss_sums import reported, weighted_sums, with_layer_losses
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.pipeline_parallel.stages import Stage

# Name of a tensor -> gradients that the stages which took the tensor have sent back.
Cotangents = dict[int, list[tf.Tensor]]


class StageOutputs(NamedTuple):
    """Results of a stage for one micro-batch.

    Attributes:
      outputs: Tensors in the order of the stage's outputs.
      share: Scalar part of the loss: sum of its losses / examples in the global batch.
      sums: Numerators by name; `examples` in the last stage only.
      state: Contribution to the new layer state.
    """

    outputs: list[tf.Tensor]
    share: tf.Tensor
    sums: dict[str, tf.Tensor]
    state: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
    """Function from a stage's inputs to its results; `model` is the whole model."""

    stage: Stage
    model: keras.Model
    objective: Objective
    layer_state: LayerState
    seed_states: list[keras.Variable]
    random_numbers: StepRandomNumbers

    @property
    def __name__(self) -> str:
        """Name of the graph that tf.function makes of it."""
        return f"stage_{self.stage.index}"

    def __call__(self, inputs: list[tf.Tensor], part: Batch) -> StageOutputs:
        # The gradient of features is not used, and a first convolution's is expensive.
        inputs = [
            tensor if name in self.stage.received else tf.stop_gradient(tensor)
            for name, tensor in zip(self.stage.inputs, inputs, strict=True)
        ]
        keyed = self.random_numbers.keyed(self.seed_states, part)
        sums: dict[str, tf.Tensor] = {}
        # Every stage has a part of the loss: its layers may add losses and
        # regularization.
        loss = tf.zeros([], keras.config.floatx())
        with keras.StatelessScope(keyed, collect_losses=True) as scope:
            with self.random_numbers.drawn(part):
                outputs = self.stage.run(inputs, training=True)
            if self.stage.is_last:
                predictions = packed_output(self.model, outputs[0])
                values = self.objective.of_predictions(
                    part.labels, predictions, part.global_size, part.totals
                )
                sums = weighted_sums(values, part)
                loss = sums["loss"]
            trained = self.stage.trainable_variables
            loss = with_layer_losses(loss, trained, scope, part)
        written = self.layer_state.collect_updates(scope, [])
        self.layer_state.check_keeps_weights(written, "--strategy=model_parallel")
        sums["loss"] = loss
        sums = reported(sums, part)
        if not self.stage.is_last:
            # The sum over stages must count each example once.
            del sums["examples"]
        return StageOutputs(
            outputs=outputs,
            share=loss / tf.cast(part.global_size, loss.dtype),
            sums=sums,
            state=self.layer_state.weight_by_shard(written, part),
        )


class _InFlight(NamedTuple):
    """Micro-batch between its forward and its backward pass in a stage."""

    tape: tf.GradientTape
    received: dict[int, tf.Tensor]
    made: StageOutputs


class StageRun:
    """One step of one stage: its pieces, one after another.

    A piece begins when its inputs are on the stage's device and the previous piece has
    ended. It ends when all its results are computed. Moving tensors between devices is
    idle time; waiting for a core of the processor is not.

    Attributes:
      stage: Stage that does the work.
      gradients: Sums over micro-batches, by reference of the variable.
      sums: Sums of each micro-batch.
      state: Contribution of each micro-batch to the layer state.
      intervals: Start and end of each piece, in seconds.
    """

    def __init__(
        self,
        stage: Stage,
        forward: Callable[..., StageOutputs],
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
        self._in_flight: dict[int, _InFlight] = {}

    def forward(self, index: int, part: Batch, values: dict[int, tf.Tensor]) -> None:
        """Runs a micro-batch forward and adds the outputs to its values."""
        labels = part.labels if self.stage.is_last else ()
        # The features of stage 0 are among the inputs; only the last stage needs
        # labels. The others are not passed to the stage's function.
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
        self._in_flight[index] = _InFlight(tape, received, made)
        self.sums.append(made.sums)
        self.state.append(made.state)
        values.update(zip(self.stage.outputs, made.outputs, strict=True))

    def backward(
        self, index: int, cotangents: Cotangents, scale: tf.Tensor | None
    ) -> None:
        """Adds to the gradients of weights and of this stage's inputs.

        Args:
          index: Index of a micro-batch that has been through `forward`.
          cotangents: Gradients of tensors of this micro-batch, by name.
          scale: Factor of the loss that is differentiated; None for one.
        """
        tape, received, made = self._in_flight.pop(index)
        targets, seeds = self._targets(made, cotangents)
        start, seeds = self._begin(seeds)
        # The number one; the backward pass waits until the clock has been read.
        one = tf.cast(start > 0, made.share.dtype)
        seeds.append(one if scale is None else one * tf.cast(scale, one.dtype))
        gradients = tape.gradient(
            [*targets, made.share], [*self._weights, *received.values()], seeds
        )
        changed = self._add_up(gradients[: len(self._weights)])
        # Gradients of inputs, for the stages that made them.
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
        self, made: StageOutputs, cotangents: Cotangents
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the outputs with gradients from later stages, and these gradients."""
        pairs = [
            # Several stages may have taken the same output.
            (output, tf.add_n(cotangents[name]))
            for name, output in zip(self.stage.outputs, made.outputs, strict=True)
            if name in cotangents
        ]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _add_up(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds the gradients of one micro-batch and returns the sums."""
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
        """Returns the start time of a piece and its inputs on the stage's device."""
        # identity copies a tensor to this device.
        here = [tf.identity(tensor) for tensor in tensors]
        before = [end for _, end in self.intervals[-1:]]
        start = self._clock.now([*here, *before])
        with tf.control_dependencies([start]):
            # The second identity makes the inputs depend on the start time.
            return start, [tf.identity(tensor) for tensor in here]

    def _end(self, start: tf.Tensor, made: Any) -> None:
        end = self._clock.now([start, *tf.nest.flatten(made)])
        self.intervals.append((start, end))


class StageClock:
    """Clock on a stage's device.

    `tf.timestamp` in the graph of a step would serialize the stages: TensorFlow runs
    stateful operations that use no resource in the order of their creation, on all
    devices. An operation that reads a resource only waits for the operations that write
    to it (tensorflow/python/framework/auto_control_deps.py). The clock therefore reads
    a variable to which no operation writes.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._variable = tf.Variable(0.0, trainable=False, name="clock")
        self._read = tf.function(self._timestamp, autograph=False)

    def now(self, after: Sequence[Any]) -> tf.Tensor:
        """Returns the time in seconds, float64 scalar, when some tensors are computed.

        Args:
          after: Tensors of any type and shape, and IndexedSlices.
        """
        # A control dependency on a function call only waits for the side effects of the
        # function. A number of each tensor makes the clock wait for the values.
        numbers = tf.concat([_first_number(value) for value in after], axis=0)
        return self._read(tf.reduce_sum(numbers))

    def _timestamp(self, computed: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([computed, self._variable.read_value()]):
            return tf.timestamp()


def _first_number(value: Any) -> tf.Tensor:
    """Returns the first number of a tensor as float32 [1]; [0] if it is empty."""
    numbers = value.values if isinstance(value, tf.IndexedSlices) else value
    return tf.cast(tf.reshape(numbers, [-1])[:1], tf.float32)
