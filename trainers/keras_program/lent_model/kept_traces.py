"""Traces of a `fit` that the next one of the same model runs again.

Keras keeps the trace of its step until `compile`. So do these: a program that calls
`fit` in a loop waits for one trace, and what it changes in Python in between, such as
the rate of a Dropout layer, has no effect, as in Keras.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.models import compiled_state
from strategies.common.private_apis.optimizers import schedule_of
from strategies.inner_loop.reduction import bytes_of
from trainers.config.config import Config
from trainers.inputs.sources import Data, Source, first_examples
from trainers.keras_program.lent_model.lent_model import LentModel
from trainers.keras_program.streams.stream import ProgramStream
from trainers.loop.builder import assemble_again
from trainers.loop.parts import LoopParts, Phase, TrainingParts
from trainers.user_code.checks import check_ids
from trainers.user_code.few_examples import EXAMPLES_OF_A_STEP, few_examples
from trainers.user_code.losses import CompiledObjective

# The variables of the strategy stay in memory, beside those of the program.
_MOST_KEPT_BYTES = 1 << 30


class KeptTraces:
    """Loops of the last `fit`, with the variables of the strategy that they read.

    Attributes:
      lent: Model of that `fit`.
    """

    def __init__(self, lent: LentModel, parts: TrainingParts):
        """Keeps what a `fit` that is over leaves, apart from its data."""
        self.lent = lent
        self._loops = parts.loops()
        self._objects = _objects(lent)
        self._values = _values(lent, parts.config, parts.data)

    def are_of(self, model: keras.Model, config: Config, data: Data) -> bool:
        """Returns whether a `fit` would trace the same.

        Args:
          model: Model that is to be trained.
          config: Configuration of its `fit`.
          data: Examples of its `fit`.
        """
        # With a function of its own Keras has traced the program's steps since then.
        if model is not self.lent.model or model.train_function is not None:
            return False
        objects = _objects(self.lent)
        return (
            len(objects) == len(self._objects)
            and all(map(lambda a, b: a is b, objects, self._objects))
            and _values(self.lent, config, data) == self._values
        )

    def assemble(self, config: Config, data: Data, phase: Phase) -> TrainingParts:
        """Lends the model again, and returns the parts of its next training.

        Raises:
          UsageError: The data do not fit the model or the strategy.
        """
        objective, scale = self._loops.objective, self._loops.learning_rate_scale
        if isinstance(objective, CompiledObjective):
            model, few = self.lent.model, few_examples(data.sample_source)
            names = getattr(model, "output_names", None)
            check_ids(model.loss, names, data, few, objective.outputs)
        with self._loops.strategy.scope():
            self.lent.lend_again(config, scale.times)
        return assemble_again(self._loops, config, data, self.lent.build, phase)


def kept_traces(lent: LentModel, parts: TrainingParts) -> KeptTraces | None:
    """Returns the traces of a `fit` that is over; None if no later one can use them."""
    config = parts.config
    is_kept = (
        config.strategy.traits.reuses_traces
        and not config.model.keras_fit
        # Each training begins with other weights.
        and not config.model.perturb_initial_weights
        # The Python code of eager steps runs in every step.
        and not lent.model.run_eagerly
        # The schedule of a flag knows the length of its training.
        and parts.has_compiled_optimizer
        # A loss scale, and a factor of the learning rate, begin each training anew.
        and parts.loss_scale is None
        and not config.guard.rolls_back
        and float(parts.learning_rate_scale.variable.numpy()) == 1.0
        and _kept_bytes(parts) <= _MOST_KEPT_BYTES
    )
    return KeptTraces(lent, parts) if is_kept else None


def _kept_bytes(parts: LoopParts) -> int:
    """Returns the bytes of the strategy's variables, at most."""
    variables = [*parts.model.variables, *parts.saved_optimizer_variables()]
    return parts.strategy.num_replicas * bytes_of([v.value for v in variables])


def _objects(lent: LentModel) -> Sequence[Any]:
    """Returns objects that a trace refers to."""
    model = lent.model
    schedules = [schedule_of(optimizer) for optimizer in lent.optimizers()]
    return [compiled_state(model), model.optimizer, *lent.variables(), *schedules]


def _values(lent: LentModel, config: Config, data: Data) -> Sequence[Any]:
    """Returns what a trace depends on, apart from objects."""
    settings = dataclasses.asdict(config)
    settings["length"]["train_steps"] = None
    is_trained = [variable.trainable for variable in lent.variables()]
    return settings, is_trained, _specified(data.train), _specified(data.evaluation)


def _specified(source: Source) -> tuple[int, Any]:
    """Returns how many examples checks can look at, and the specification of one."""
    count = min(source.num_examples, EXAMPLES_OF_A_STEP)
    if isinstance(source, ProgramStream):
        return count, source.spec
    if not count:
        return count, None
    specs = tf.nest.map_structure(
        lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype),
        first_examples(source, 1),
    )
    # As text, because a named tuple equals a plain one.
    return count, repr(specs)
