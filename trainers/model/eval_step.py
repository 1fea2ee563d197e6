"""Replica step of an evaluation: sums of the loss and the metrics."""

from collections.abc import Sequence

import keras

from models.objective import Objective, Predict, evaluated
from strategies.common.types import Batch, ReplicaOutputs
from trainers.model.confusion_matrix import CONFUSION, MOST_CLASSES, confusion_of
from trainers.model.loss_sums import reported, weighted_sums, with_layer_losses
from trainers.model.random_numbers.seeds import keyed_states, step_key
from trainers.model.random_numbers.tensorflow_draws import TensorFlowDraws


class EvalStep:
    """The sums of one evaluation batch; no gradients.

    The loss has what layers add and the regularization of weights in it, as in
    training and as Keras's `evaluate` has it.
    """

    def __init__(
        self,
        model: Predict,
        objective: Objective,
        variables: Sequence[keras.Variable],
        seed_states: Sequence[keras.Variable] = (),
    ):
        """Traces nothing yet.

        Args:
          model: Model to evaluate.
          objective: Evaluated loss and metrics.
          variables: Variables that are trained, and may be regularized.
          seed_states: Counters of layers that draw random numbers.
        """
        self._model = model
        self._objective = objective
        self._variables = variables
        self._seed_states = list(seed_states)
        self._draws = TensorFlowDraws()

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        keyed = keyed_states(self._seed_states, 0, batch)
        with (
            self._draws.keyed(step_key(0, batch)),
            keras.StatelessScope(keyed, collect_losses=True) as scope,
        ):
            values, classes = evaluated(self._objective, self._model, batch)
            sums = weighted_sums(values, batch)
            if not self._objective.has_layer_losses:
                sums["loss"] = with_layer_losses(
                    sums["loss"], self._variables, scope, batch
                )
        sums = reported(sums, batch)
        if classes is not None and classes.num_classes <= MOST_CLASSES:
            sums[CONFUSION] = confusion_of(classes, batch)
        return ReplicaOutputs(gradients=[], state={}, sums=sums)
