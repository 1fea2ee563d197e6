"""Callbacks of the outer loop that run the epochs of a program's `fit`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.keras_program.epochs import Epochs
from trainers.loop.loop import Callback, StepEvent, When


class TrainingStopped(Exception):
    """A callback of a program has stopped the training, as EarlyStopping does."""

    def __init__(self, event: StepEvent):
        super().__init__(f"stopped after step {event.step}")
        self.event = event


def callbacks_of(
    epochs: Epochs,
    evaluate: Callable[[StepEvent], Mapping[str, float]],
    with_equal_variables: Callable[[Callable[[StepEvent], Any]], Callback],
) -> Sequence[When]:
    """Returns the callbacks that call a program's callbacks, at batches and epochs.

    `evaluate` evaluates on the held-out examples, and `with_equal_variables` adds
    collectives around a callback.
    """

    def end(event: StepEvent) -> None:
        # Before a validation, which begins with empty metrics of the model.
        logs = epochs.end_training()
        evaluated = None
        if epochs.is_validated():
            epochs.begin_validation()
            evaluated = evaluate(event)
            epochs.end_validation(evaluated)
        epochs.end(logs, evaluated)
        if epochs.is_stopped:
            raise TrainingStopped(event)

    def end_batch(event: StepEvent) -> None:
        epochs.end_batch()
        # As in `fit`, the epoch ends at once.
        if epochs.is_stopped and not at_ends.is_due(event):
            end(event)

    at_ends = When(with_equal_variables(end), epochs.next_end_of_epoch)
    at_batches = When(
        with_equal_variables(end_batch),
        epochs.next_end_of_batch,
        holds=epochs.is_due_at_batch,
    )
    return [When(epochs.window), at_batches, at_ends]
