"""Functions that train a model made for one test under any strategy."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from models.base import Build, Examples, Settings
from models.classification import ModelSpec, largest_logit
from models.objective import PerExample, PredictionObjective
from strategies import registry
from strategies.cluster.spec import Cluster
from trainers.inputs.sources import ArraySource, Data
from trainers.loop.builder import assemble_parts
from trainers.loop.parts import TrainingParts

from tests.conformance.harness import small_config  # isort: skip


def assemble_custom(
    strategy: str,
    replicas: int,
    layers: Callable[[], Sequence[keras.layers.Layer]],
    features: np.ndarray,
    *,
    loss: PerExample | None = None,
    metrics: dict[str, PerExample] | None = None,
    **settings: object,
) -> TrainingParts:
    """Assembles a run of a stack of layers on features [n, ...].

    The label of an example is its index.
    """

    def build(data: Examples, settings: Settings) -> keras.Model:
        return keras.Sequential([keras.Input(data.input_shape), *layers()])

    return assemble_model(
        strategy, replicas, build, features, loss=loss, metrics=metrics, **settings
    )


def assemble_model(
    strategy: str,
    replicas: int,
    build: Build,
    features: np.ndarray,
    *,
    loss: PerExample | None = None,
    metrics: dict[str, PerExample] | None = None,
    **settings: object,
) -> TrainingParts:
    """Assembles a run of a model of any kind; the label of an example is its index."""
    config = small_config(strategy=strategy, num_replicas=replicas, **settings)
    labels = np.arange(len(features), dtype=np.int64)
    source = ArraySource(features, labels)
    objective = PredictionObjective(
        loss=loss or _mean_square, metrics=metrics or {}, classes=largest_logit
    )
    spec = ModelSpec(build=build, make_objective=lambda label_smoothing: objective)
    data = Data(
        train=source,
        evaluation=source,
        input_shape=features.shape[1:],
        num_classes=2,
    )
    created = registry.load(strategy).create(config.strategy, Cluster())
    return assemble_parts(config, created, data, spec)


def train(assembly: TrainingParts, num_steps: int) -> dict[str, np.ndarray]:
    """Trains from the first step on; returns the sums [steps] by name."""
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, num_steps)
    assert results.applied_steps == num_steps
    return dict(results.sums)


def _mean_square(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    del labels
    return tf.reduce_mean(tf.square(tf.reshape(outputs, [tf.shape(outputs)[0], -1])), 1)
