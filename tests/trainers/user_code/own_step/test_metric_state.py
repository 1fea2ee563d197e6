"""A metric of which an epoch depends on earlier batches or epochs is refused."""

from typing import Any

import keras
import pytest

from strategies.common.errors import UsageError
from tests.markers import further
from tests.trainers.user_code.own_step.few import few_examples
from trainers.user_code import PerBatchError
from trainers.user_code.losses import objective_of
from trainers.user_code.own_step.probe import own_step
from trainers.user_code.probe import probe


class Counts(keras.metrics.Metric):
    """Mean of the errors, of a class that does everything by itself."""

    def __init__(self) -> None:
        super().__init__(name="watched")
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(self.total + keras.ops.mean(keras.ops.abs(y_true - y_pred)))
        self.count.assign_add(1)

    def result(self) -> Any:
        return keras.ops.divide_no_nan(self.total, self.count)


class Moving(Counts):
    """Moving average over batches."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = keras.ops.mean(keras.ops.abs(y_true - y_pred))
        self.total.assign(0.9 * self.total + 0.1 * error)


class MovingSum(Counts):
    """Moving sum over examples."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = keras.ops.sum(keras.ops.abs(y_true - y_pred))
        self.total.assign(0.9 * self.total + error)


class Latest(Counts):
    """Value of the last batch."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(keras.ops.mean(keras.ops.abs(y_true - y_pred)))


class Cumulative(keras.metrics.MeanAbsoluteError):
    """Mean over all epochs."""

    def reset_state(self) -> None:
        """Keeps all."""


class Halved(Counts):
    """Mean in which earlier epochs count by half."""

    def reset_state(self) -> None:
        for variable in self.variables:
            variable.assign(variable / 2)


class KeepsEpochs(Counts):
    """Mean that counts its epochs in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = [0]

    def reset_state(self) -> None:
        super().reset_state()
        self.epochs.append(0)


class Best(Counts):
    """Smallest mean so far."""

    def __init__(self) -> None:
        super().__init__()
        self.best = self.add_variable((), "zeros", name="best")

    def result(self) -> Any:
        self.best.assign(keras.ops.maximum(self.best, super().result()))
        return self.best.value


class FromHundred(Counts):
    """Mean that begins with a constant."""

    def reset_state(self) -> None:
        super().reset_state()
        self.total.assign(100)


class Steps(keras.Model):
    """Updates a metric in its step."""

    def __init__(self, watched: keras.metrics.Metric) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(1)
        self.watched = watched

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        self.watched.update_state(data[1], self(data[0]))
        return {**logs, "watched": self.watched.result()}


def _look_at(metric: keras.metrics.Metric, in_step: bool) -> None:
    """Does what `fit` of a program does to know a model."""
    few = few_examples()
    few = few._replace(labels=few.features[:, :1])
    if in_step:
        model = Steps(metric)
        model.compile("sgd", "mse")
    else:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[metric])
        try:
            objective_of(model, None, None, probe(model, few), is_of_program=True)
            return
        except PerBatchError:
            pass
    own_step(model, few, held_out=few)


_NO_SUM = "keeps numbers that are not sums over examples"
_NO_RESET = "keeps a part of its state in reset_state"


@pytest.mark.parametrize(
    ("kind", "in_step", "words"),
    [
        (Moving, True, _NO_SUM),
        (MovingSum, False, _NO_SUM),
        further(Latest, True, _NO_SUM),
        (Cumulative, False, _NO_RESET),
        (Cumulative, True, _NO_RESET),
        (Halved, False, _NO_RESET),
        (KeepsEpochs, False, _NO_RESET),
        (Best, False, "changes its state in result"),
    ],
)
def test_a_metric_that_depends_on_earlier_ones_is_refused(
    kind: type[keras.metrics.Metric], in_step: bool, words: str
) -> None:
    metric = kind(name="watched") if kind is Cumulative else kind()
    with pytest.raises(UsageError, match=f"the metric 'watched' {words}"):
        _look_at(metric, in_step)


@pytest.mark.parametrize(("kind", "in_step"), [(Counts, False), (FromHundred, True)])
def test_a_metric_of_sums_is_left_as_at_the_start(
    kind: type[Counts], in_step: bool
) -> None:
    metric, other = kind(), kind()
    _look_at(metric, in_step)
    other.reset_state()
    assert [v.numpy() for v in metric.variables] == [v.numpy() for v in other.variables]
