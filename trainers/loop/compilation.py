"""Decision about the part of a training that XLA compiles (`--jit_compile`).

XLA makes one program of many operations. On CPUs that pays for dense networks, whose
operations are shorter than the time to start them, and costs much for convolutions: the
step of a convnet took 72 ms in place of 30, and its loop 2,900. So `auto` decides by
the model's layers, the device and the strategy, and not by measuring, after which two
runs of one command could differ in their last bits.
"""

import dataclasses
import enum
from collections.abc import Iterator

import keras

from models.objective import Objective
from strategies.base import Strategy
from strategies.common.types import SpanShape
from trainers.config.config import Config
from trainers.loop.compilable import obstacles_of_model, obstacles_of_objective
from trainers.model.random_numbers.seeds import seed_states


class Scope(enum.Enum):
    """Part of a training that XLA compiles."""

    NOTHING = "nothing"
    # Forward and backward pass of a replica, or of each pipeline stage.
    REPLICA = "a replica"
    # The loop over steps, with input and update.
    LOOP = "the loop"


@dataclasses.dataclass(frozen=True, slots=True)
class Compilation:
    """Decision about the compiled part, and its reason in words for the user."""

    scope: Scope
    reason: str

    @property
    def setting(self) -> str:
        """Value of `--jit_compile` that leads to the same decision."""
        return "off" if self.scope is Scope.NOTHING else "on"

    @property
    def words(self) -> str:
        """Compiled part and reason, as one line for the user."""
        return f"compiles {self.scope.value}: {self.reason}"


def compilation_of(
    config: Config,
    strategy: Strategy,
    model: keras.Model,
    objective: Objective,
    largest_span: SpanShape | None,
) -> Compilation:
    """Decides which part of a training XLA compiles.

    No span of the batches exceeds `largest_span`, which is None if unknown.
    """
    asked = config.model.jit_compile
    is_given = "jit_compile" in config.given
    # `TrainingDir.with_decisions` keeps the decision of the run that continues.
    words = f"--jit_compile={asked}" if is_given else "as when the run began"
    if asked == "off" and is_given:
        return Compilation(Scope.NOTHING, words)
    obstacle = next(_obstacles(config, strategy, model, objective, largest_span), None)
    if asked == "on":
        scope = Scope.REPLICA if obstacle else Scope.LOOP
        return Compilation(scope, words)
    if obstacle or asked == "off":
        return Compilation(Scope.NOTHING, obstacle or words)
    return Compilation(Scope.LOOP, "dense layers on one CPU")


def _obstacles(
    config: Config,
    strategy: Strategy,
    model: keras.Model,
    objective: Objective,
    largest_span: SpanShape | None,
) -> Iterator[str]:
    """Yields each reason against a compiled loop, in words."""
    traits = config.strategy.traits
    if not traits.compiles_loop:
        yield f"steps of {config.strategy.strategy} communicate"
    if "GPU" in "".join(strategy.devices):
        yield "not measured on GPUs"
    if largest_span is None:
        yield "a stream's batches have no known size"
    if config.model.script is not None:
        # Its callbacks may ask for every step by itself, where a span is copied for
        # each.
        yield "a program that calls fit"
    if config.strategy.gradient_accumulation_steps > 1:
        yield "micro-batches"
    if config.report.replica_statistics:
        yield "statistics of replicas"
    if model.dtype_policy.compute_dtype not in ("float32", "float64"):
        yield f"computes in {model.dtype_policy.compute_dtype}"
    yield from obstacles_of_model(model)
    if seed_states(model):
        yield "XLA draws other random numbers"
    if config.model.is_custom:
        yield from obstacles_of_objective(objective)
