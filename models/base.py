"""The interface of a model: settings, data and construction."""

from typing import Protocol

import keras

from models.objective import Objective


class Examples(Protocol):
    """Properties of the data set that a model is built for."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's features, without the batch dimension."""

    @property
    def num_classes(self) -> int:
        """Number of logits; 0 if labels are not ids of classes."""

    @property
    def num_categories(self) -> int | None:
        """Number of categories if features are ids; None if they are quantities.

        Ids are from 0 to num_categories - 1.
        """


class Settings(Protocol):
    """Settings of a model, which names the ones that it reads in its `SETTINGS`."""

    @property
    def hidden_units(self) -> tuple[int, ...]:
        """Width of each hidden layer."""

    @property
    def dropout(self) -> float:
        """Fraction of activations dropped in training."""

    @property
    def embedding_dimension(self) -> int:
        """Number of values in the vector of one category."""

    @property
    def embedding_shards(self) -> int:
        """Number of variables that hold the rows of an embedding."""


class Build(Protocol):
    """A function that builds a model with new weights."""

    def __call__(self, data: Examples, settings: Settings) -> keras.Model:
        """Returns a model from features [n, *input_shape] to logits [n, num_classes].

        Raises:
          ValueError: The model cannot take such features. The message is one line for
            the user: the received value, the accepted values and the necessary change.
        """


class TrainableModel(Protocol):
    """A model that can be built, with its objective."""

    @property
    def build(self) -> Build:
        """Function that builds the Keras model."""

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """Returns the objective of a model that `build` made.

        Raises:
          ValueError: The model has no objective, or it does not support label
            smoothing.
        """

    @property
    def compiled_optimizer(self) -> keras.optimizers.Optimizer | None:
        """Optimizer to train with; None for the one of the settings."""
