"""A harness that runs any strategy on small problems and keeps the results."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.classification import ModelSpec
from strategies import registry
from strategies.cluster.spec import Cluster
from strategies.common.types import LoopFunction, SummaryLevel
from trainers import inputs
from trainers.config.config import Config
from trainers.inputs.batches import SourceBatches
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source
from trainers.loop.builder import assemble, assemble_parts, create_strategy
from trainers.loop.compilation import Scope
from trainers.loop.parts import TrainingParts

NUM_STEPS = 30
REPLICAS = (1, 2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The number of examples and the size of a global batch."""

    num_examples: int
    global_batch_size: int


LAYOUTS = {
    "even": Layout(num_examples=96, global_batch_size=24),
    # 97 = 4 x 24 + 1: only one replica gets an example of the last batch.
    "uneven": Layout(num_examples=97, global_batch_size=24),
    "batch_of_10": Layout(num_examples=64, global_batch_size=10),
}

UPDATES = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "adamw": {
        "optimizer": "adamw",
        "learning_rate": 0.003,
        "learning_rate_schedule": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.05,
        # The limit is below every gradient norm of these runs, so that every step
        # clips.
        "clip_global_norm": 0.1,
    },
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run of a few steps.

    Attributes:
      losses: Mean loss of each step, float64 [steps].
      variables: Weights and layer state at the end, in the model's order.
      applied_steps: Number of applied steps that the inner loop counted.
      step: Value of the step variable at the end.
      gradient_norm: Norm of the summed gradient of the last step.
    """

    losses: np.ndarray
    variables: Sequence[np.ndarray]
    applied_steps: int
    step: int
    gradient_norm: float


def in_one_process() -> list[str]:
    """Returns the strategies of one process, which this suite runs."""
    return [
        name for name in registry.names() if not registry.traits(name).multi_process
    ]


def subjects() -> list[tuple[str, int]]:
    """Returns every strategy with every number of replicas it can have here."""
    return [
        (name, replicas)
        for name in in_one_process()
        for replicas in REPLICAS
        if replicas <= (registry.traits(name).max_replicas or max(REPLICAS))
    ]


def same_training() -> list[tuple[str, int]]:
    """Returns the subjects that must equal one device; others have their own tests."""
    return [
        (name, replicas)
        for name, replicas in subjects()
        if registry.traits(name).matches_one_device
    ]


def alone_and_uneven(some: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Keeps the subjects of one replica, and of three, which leave remainders.

    Three divide hardly any batch of these tests evenly. A property that holds for every
    number of replicas is tested with all of them elsewhere.
    """
    return [(name, replicas) for name, replicas in some if replicas in (1, 3)]


def uneven(some: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Keeps the subjects of three replicas, and one device."""
    return [(name, n) for name, n in some if n == 3 or name == "one_device"]


def small_config(**settings: object) -> Config:
    """Returns the settings of a run that is short enough to be compared often."""
    defaults: dict[str, object] = {
        "dataset": "synthetic",
        "num_examples": 128,
        "input_shape": (8, 8, 1),
        "num_classes": 5,
        "hidden_units": (16,),
        "train_steps": NUM_STEPS,
        # XLA takes a second to compile a model. `make test-exhaustive` compiles all.
        "jit_compile": os.environ.get("TEST_JIT_COMPILE", "off"),
    }
    return Config().replace(**{**defaults, **settings})


class Subject:
    """A strategy with a model, which can start over without another trace."""

    def __init__(self, assembly: TrainingParts):
        self.assembly = assembly
        self._variables = [
            assembly.step,
            *(v.value for v in assembly.model.variables),
            *(v.value for v in assembly.optimizer.variables),
        ]
        self._initial = [variable.numpy() for variable in self._variables]
        self._compiled_loops: dict[Layout, LoopFunction] = {}

    @classmethod
    def of(cls, config: Config, spec: ModelSpec | None = None) -> Subject:
        """Assembles a run.

        Args:
          config: Settings of the run.
          spec: Model in place of the model of the settings.
        """
        strategy = create_strategy(config, Cluster())
        if spec is None:
            return cls(assemble(config, strategy))
        data = inputs.load(config.data)
        return cls(assemble_parts(config, strategy, data, spec))

    def run(
        self,
        layout: Layout,
        num_steps: int = NUM_STEPS,
        calls: int = 1,
        seed: int | None = None,
    ) -> Outcome:
        """Trains from the initial weights.

        Args:
          layout: Examples and global batches.
          num_steps: Steps to train for.
          calls: Number of calls of the inner loop that share the steps.
          seed: Seed of initial weights and order, without another trace; None for the
            weights of the configuration's seed.
        """
        for variable, value in zip(self._variables, self._initial, strict=True):
            variable.assign(value)
        if seed is not None:
            # Keras's initializers draw their seeds from `random`. A call of
            # `keras.utils.set_random_seed` would also make TensorFlow optimize every
            # function again (`context._set_global_seed`).
            random.seed(seed)
            self.assembly.model.set_weights(self.assembly.rebuild().get_weights())
        order = Order(
            num_examples=layout.num_examples,
            global_batch_size=layout.global_batch_size,
            seed=1 if seed is None else seed,
        )
        batches = self.assembly.strategy.distribute(
            SourceBatches(
                source=_First(self.assembly.data.train, layout.num_examples),
                order=order,
                first_step=0,
                last_step=num_steps,
            )
        )
        loop_function = self._loop_function(layout)
        results = [
            loop_function(batches, num_steps // calls, SummaryLevel.NORMS)
            for _ in range(calls)
        ]
        losses = [r.sums["loss"] / r.sums["examples"] for r in results]
        return Outcome(
            losses=np.concatenate(losses),
            variables=[weight.numpy() for weight in self.assembly.model.weights],
            applied_steps=sum(result.applied_steps for result in results),
            step=int(self.assembly.step.numpy()),
            gradient_norm=float(results[-1].details["gradient_norm"]),
        )

    def _loop_function(self, layout: Layout) -> LoopFunction:
        """Returns the loop for a layout: XLA compiles one for each size of spans."""
        if self.assembly.compilation.scope is not Scope.LOOP:
            return self.assembly.loop_function
        untraced = copy.copy(self.assembly.loop_function)
        return self._compiled_loops.setdefault(layout, untraced)


@dataclasses.dataclass(frozen=True)
class _First:
    """A source that has only the first examples of another."""

    source: Source
    num_examples: int

    @property
    def example_bytes(self) -> int | None:
        return self.source.example_bytes

    def tensors(self) -> Any:
        return self.source.tensors()

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        return self.source.read(tensors, indices)
