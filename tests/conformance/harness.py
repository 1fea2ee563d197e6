"""Runs any strategy on small problems and keeps what it did."""

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
    """How many examples there are and how they fall into global batches."""

    num_examples: int
    global_batch_size: int


LAYOUTS = {
    "even": Layout(num_examples=96, global_batch_size=24),
    # 97 = 4 x 24 + 1: the last batch leaves every replica but one without work.
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
        # Smaller than every gradient norm seen here, so that it always clips.
        "clip_global_norm": 0.1,
    },
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run of a few steps did.

    Attributes:
      losses: float64 [steps], mean loss of each step.
      variables: weights and layer state at the end, in the model's order.
      applied_steps: as the inner loop counts them.
      step: as the step variable counts them.
      gradient_norm: of the last summed gradient.
    """

    losses: np.ndarray
    variables: Sequence[np.ndarray]
    applied_steps: int
    step: int
    gradient_norm: float


def in_one_process() -> list[str]:
    """The strategies that this suite runs, by trait."""
    return [
        name for name in registry.names() if not registry.traits(name).multi_process
    ]


def subjects() -> list[tuple[str, int]]:
    """Every strategy with every number of replicas it can have here."""
    return [
        (name, replicas)
        for name in in_one_process()
        for replicas in REPLICAS
        if replicas <= (registry.traits(name).max_replicas or max(REPLICAS))
    ]


def same_training() -> list[tuple[str, int]]:
    """Those of them that are to equal one device; the others have their own tests."""
    return [
        (name, replicas)
        for name, replicas in subjects()
        if registry.traits(name).matches_one_device
    ]


def alone_and_uneven(some: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of one replica and of three, which divide nearly no batch evenly.

    What is true of every number of replicas is shown by the tests of all of them.
    """
    return [(name, replicas) for name, replicas in some if replicas in (1, 3)]


def uneven(some: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of three replicas, and one device."""
    return [(name, n) for name, n in some if n == 3 or name == "one_device"]


def small_config(**settings: object) -> Config:
    """A run small enough to be compared many times."""
    defaults: dict[str, object] = {
        "dataset": "synthetic",
        "num_examples": 128,
        "input_shape": (8, 8, 1),
        "num_classes": 5,
        "hidden_units": (16,),
        "train_steps": NUM_STEPS,
        # Compiling takes a second. `make test-exhaustive` runs all with it.
        "jit_compile": os.environ.get("TEST_JIT_COMPILE", "off"),
    }
    return Config().replace(**{**defaults, **settings})


class Subject:
    """A strategy with a model, which can be started over without tracing again."""

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
          spec: Model in place of the one that the settings name.
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
          calls: Calls of the inner loop that they are divided into.
          seed: Decides initial weights and order, without a new trace; None for the
            weights of the configuration's own seed.
        """
        for variable, value in zip(self._variables, self._initial, strict=True):
            variable.assign(value)
        if seed is not None:
            # Of Keras's initializers. `keras.utils.set_random_seed` would also make
            # TensorFlow optimize every function again (`context._set_global_seed`).
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
            loop_function(batches, num_steps // calls, SummaryLevel.NORMS).fetch()
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
        """The loop for a layout: a compiled one is made for the size of its spans."""
        if self.assembly.compilation.scope is not Scope.LOOP:
            return self.assembly.loop_function
        untraced = copy.copy(self.assembly.loop_function)
        return self._compiled_loops.setdefault(layout, untraced)


@dataclasses.dataclass(frozen=True)
class _First:
    """The first examples of a source."""

    source: Source
    num_examples: int

    @property
    def example_bytes(self) -> int | None:
        return self.source.example_bytes

    def tensors(self) -> Any:
        return self.source.tensors()

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        return self.source.read(tensors, indices)
