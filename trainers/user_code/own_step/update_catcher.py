"""A scope that keeps the gradients which a model's own step hands to optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import scale_penalties_in_scopes
from strategies.common.private_apis.optimizers import counter_of, hand_over_updates
from strategies.common.private_apis.variables import variable_below
from trainers.model.optimizers.loss_scale import inside_of_scale
from trainers.user_code.outer_variables import AssignmentScope


class CaughtUpdate(NamedTuple):
    """One call of an optimizer.

    Attributes:
      optimizer: Optimizer that was called.
      variables: Variables that it was to update.
      gradients: Gradient of each variable, by the variable's id; None if it has none.
      assigned: Values that variables were assigned since the update before, by their
        ids: the optimizer changes those.
      is_scaled: True if a `LossScaleOptimizer` was called, around the optimizer.
    """

    optimizer: keras.optimizers.Optimizer
    variables: Sequence[keras.Variable]
    gradients: Mapping[int, Any]
    assigned: Mapping[int, tf.Tensor]
    is_scaled: bool


class StepLeft(BaseException):
    """Leaves a step whose further updates are not needed.

    The code of a step may handle any `Exception`.
    """


class UpdateCatcher(AssignmentScope):
    """Scope in which optimizers update nothing and losses are means over a shard.

    Attributes:
      updates: Calls of optimizers, in order.
      fraction: Fraction of the global batch that the step computes.
      penalty_scale: Factor of the model's `losses`; None for 1.
      is_scaled: True if the step has multiplied its loss by the scale.
      reads_after: Numbers of updates after which the step reads or assigns a variable
        that one of them is to change.
    """

    def __init__(
        self,
        mapped: Sequence[tuple[keras.Variable, Any]],
        scale: tf.Tensor | None = None,
        former: Sequence[Mapping[int, tf.Tensor]] = (),
        trained: Sequence[keras.Variable] = (),
        num_updates: int | None = None,
        fraction: tf.Tensor | None = None,
    ):
        """Prepares the scope, and makes optimizers hand updates to it.

        Args:
          mapped: Values in place of variables.
          scale: Factor for losses in half precision; None for one.
          former: Values of the variables and of the optimizer's counter, by their ids,
            before each update that has been applied already.
          trained: Variables that a tape differentiates by, also once a layer has
            assigned them, as SpectralNormalization does.
          num_updates: Number of updates after which `StepLeft` is raised; None for the
            whole step.
          fraction: Fraction of the global batch; None for all of it.
        """
        hand_over_updates(UpdateCatcher)
        scale_penalties_in_scopes()
        super().__init__(mapped, collect_losses=True)
        self.updates: list[CaughtUpdate] = []
        self.fraction = fraction
        self.penalty_scale: tf.Tensor | None = None
        self.is_scaled = False
        self.reads_after: set[int] = set()
        self._scale = scale
        self._former = former
        self._trained = {id(variable) for variable in trained}
        self._num_updates = num_updates
        self._is_over = False
        # Counters of optimizers after the updates so far.
        self._counts: dict[int, tf.Tensor] = {}
        self._graph = tf.compat.v1.get_default_graph()
        # `regularized_weights` are mapped to their own values.
        self._given = dict(self.state_mapping)

    def catch(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Keeps an update; called in place of `optimizer.apply`.

        Raises:
          UsageError: The call is in a branch or a loop of the graph.
          StepLeft: No further update is needed.
        """
        self._check_graph("calls its optimizer")
        # The loss is scaled and unscaled by the training loop.
        inner = inside_of_scale(optimizer)
        pairs = zip(variables, gradients, strict=True)
        update = CaughtUpdate(
            inner,
            list(variables),
            {id(v): g for v, g in pairs},
            {id(v): self.state_mapping[id(v)] for v in variables if self._has(v)},
            is_scaled=inner is not optimizer,
        )
        # A learning rate that the step reports is that of the next, as in Keras.
        counter = counter_of(inner)
        self._counts[id(counter)] = tf.convert_to_tensor(counter) + 1
        self.updates.append(update)
        # From here on they are what the optimizer made of them.
        for key in update.assigned:
            del self.state_mapping[key]
            if key in self._given:
                self.state_mapping[key] = self._given[key]
        if len(self.updates) == self._num_updates:
            raise StepLeft

    def scale_loss(self, loss: Any) -> Any:
        """Returns a loss to differentiate; called in place of `scale_loss`."""
        if self._scale is None:
            return loss
        self.is_scaled = True
        loss = tf.convert_to_tensor(loss)
        return loss * tf.cast(self._scale, loss.dtype)

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Keeps the value that a variable is assigned; raises as `catch` does."""
        self._check_graph(f"assigns {update[0].path!r}")
        self._note_use(update[0])
        super().add_update(update)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable; called wherever one is read."""
        value = super().get_current_value(variable)
        if self._is_over:
            return value
        if id(variable) in self._counts:
            return self._counts[id(variable)]
        self._note_use(variable)
        if self._has(variable):
            # No gradient flows through an assignment.
            return _with_derivative(variable, tf.stop_gradient(value))
        # Updates of earlier passes are applied already: until this pass reaches one,
        # it reads what was there before it.
        for before in self._former[len(self.updates) :]:
            if id(variable) in before:
                return _with_derivative(variable, before[id(variable)])
        return value

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._is_over = True

    def _has(self, variable: keras.Variable) -> bool:
        """Returns whether a variable that is trained has an assigned value."""
        value = self.state_mapping.get(id(variable))
        is_new = value is not None and value is not self._given.get(id(variable))
        return is_new and id(variable) in self._trained

    def _check_graph(self, what: str) -> None:
        # The graph of a branch or of a loop's body.
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UsageError(
                f"a step of the model {what} in a branch or a loop of the graph, such "
                "as tf.cond or tf.while_loop: do so in every step. The optimizer's "
                "gradient_accumulation_steps adds up gradients of several batches."
            )

    def _note_use(self, variable: keras.Variable) -> None:
        if any(id(variable) in update.gradients for update in self.updates):
            self.reads_after.add(len(self.updates))


def _with_derivative(variable: keras.Variable, value: tf.Tensor) -> tf.Tensor:
    """Returns another value of a variable, with a derivative by the variable."""
    present = variable_below(variable)
    now = tf.convert_to_tensor(present)
    value += now - tf.stop_gradient(now)
    # A tape looks for the handle of what it is to differentiate by.
    value.handle = present.handle
    return value
