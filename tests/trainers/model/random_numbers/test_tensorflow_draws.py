"""Random numbers of TensorFlow's operations in a step."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from models.objective import PredictionObjective
from strategies.common.types import Batch
from trainers.model.eval_step import EvalStep
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.tensorflow_draws import TensorFlowDraws

# Statistics are held against a chance of 1e-6, so that no fixed seed is unlucky.
UNLIKELY = 1e-6
SIZE = 20_000


def drawn(draw: Callable[[], tf.Tensor], step: int) -> np.ndarray:
    """Draws in the step of a key, in a new graph as of another process."""
    draws = TensorFlowDraws()

    @tf.function(autograph=False)
    def run(key: tf.Tensor) -> tf.Tensor:
        with draws.keyed(key):
            return draw()

    return run(tf.constant([3, step], tf.int64)).numpy()


GENERATOR = tf.random.Generator.from_seed(7)
# Of no layer.
KERAS_GENERATOR = keras.random.SeedGenerator(7)


def in_a_scope(seed: keras.random.SeedGenerator | None) -> tf.Tensor:
    """Draws as a layer does in a step."""
    with keras.StatelessScope():
        return keras.random.normal([SIZE], seed=seed)


DRAWS: dict[str, tuple[Callable[[], tf.Tensor], scipy.stats.rv_continuous | None]] = {
    "normal": (lambda: tf.random.normal([SIZE], 1.0, 2.0), scipy.stats.norm(1, 2)),
    "uniform": (
        lambda: tf.random.uniform([SIZE], -1, 3, tf.float64),
        scipy.stats.uniform(-1, 4),
    ),
    "truncated": (
        lambda: tf.random.truncated_normal([SIZE]),
        scipy.stats.truncnorm(-2, 2),
    ),
    "gamma": (
        lambda: tf.random.gamma([SIZE], [2.0], dtype=tf.float64)[:, 0],
        scipy.stats.gamma(2),
    ),
    "whole numbers": (lambda: tf.random.uniform([SIZE], 0, 9, tf.int32), None),
    "poisson": (lambda: tf.random.poisson([SIZE], [4.0])[:, 0], None),
    "classes": (lambda: tf.random.categorical([[0.0, 1.0]], SIZE)[0], None),
    "shuffled": (lambda: tf.random.shuffle(tf.range(SIZE)), None),
    "generator": (lambda: GENERATOR.normal([SIZE]), scipy.stats.norm()),
    "Keras without a seed": (lambda: in_a_scope(None), scipy.stats.norm()),
    "Keras by a generator": (lambda: in_a_scope(KERAS_GENERATOR), scipy.stats.norm()),
    "dropout": (lambda: tf.nn.dropout(tf.ones([SIZE]), 0.3), None),
    "flips": (
        lambda: tf.image.random_flip_left_right(
            tf.reshape(tf.range(2.0 * SIZE), [SIZE, 1, 2, 1])
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_step_has_its_numbers_in_every_process(name: str) -> None:
    draw, distribution = DRAWS[name]
    numbers = drawn(draw, step=1)
    np.testing.assert_array_equal(drawn(draw, step=1), numbers)
    assert (drawn(draw, step=2) != numbers).any()
    if distribution is not None:
        assert scipy.stats.kstest(numbers, distribution.cdf).pvalue > UNLIKELY


def test_whole_numbers_have_their_chances() -> None:
    dice = np.bincount(drawn(DRAWS["whole numbers"][0], step=1))
    assert scipy.stats.chisquare(dice).pvalue > UNLIKELY
    ones = drawn(DRAWS["classes"][0], step=1).sum()
    chance = np.e / (1 + np.e)
    assert scipy.stats.binomtest(int(ones), SIZE, chance).pvalue > UNLIKELY
    counts = drawn(DRAWS["poisson"][0], step=1)
    # The mean of n Poisson numbers of 4 has the variance 4 / n.
    assert abs(counts.mean() - 4) < 5 * np.sqrt(4 / SIZE)
    np.testing.assert_array_equal(
        np.sort(drawn(DRAWS["shuffled"][0], step=1)), np.arange(SIZE)
    )


def test_calls_of_a_step_are_independent() -> None:
    def two() -> tf.Tensor:
        return tf.stack([tf.random.normal([SIZE]), tf.random.normal([SIZE])])

    assert scipy.stats.pearsonr(*drawn(two, step=1)).pvalue > UNLIKELY

    def two_of_a_generator() -> tf.Tensor:
        return tf.stack([GENERATOR.normal([SIZE]), GENERATOR.normal([SIZE])])

    found = drawn(two_of_a_generator, step=1)
    assert scipy.stats.pearsonr(*found).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("draw", "states"),
    [
        (lambda: keras.random.normal([4]), []),
        (lambda: keras.random.normal([4], seed=KERAS_GENERATOR), []),
        # Of a layer.
        (
            lambda: keras.random.normal([4], seed=KERAS_GENERATOR),
            [KERAS_GENERATOR.state],
        ),
        (lambda: GENERATOR.normal([4]), []),
        (lambda: tf.random.normal([4]), []),
    ],
)
def test_batches_of_an_evaluation_draw_different_numbers(
    draw: Callable[[], tf.Tensor], states: list[keras.Variable]
) -> None:
    """Workers trace the same graph, with the same seed of TensorFlow."""
    objective = PredictionObjective(
        loss=lambda labels, predictions: predictions, metrics={}
    )
    step = EvalStep(lambda features, training: draw(), objective, [], states)

    @tf.function(autograph=False)
    def loss_of(index: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
        four, rows = tf.constant(4, tf.int64), tf.range(4, dtype=tf.int64)
        batch = Batch(index, replica, four, four, rows, rows, rows)
        return step(batch).sums["loss"]

    first, again, *others = (
        float(loss_of(*map(np.int64, place)))
        for place in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert first == again
    assert len({first, *others}) == 3


def test_a_step_of_the_model_alone_is_there_again_after_a_fit() -> None:
    def own(data: Any) -> Any:
        return {}

    model = keras.Sequential()
    model.train_step = own
    with TensorFlowDraws().keyed_in_steps(model, tf.Variable([0, 0], dtype=tf.int64)):
        assert model.train_step is not own
    assert model.train_step is own


def test_turns_of_a_loop_draw_different_numbers() -> None:
    """A key of the step would be the same in each of them."""

    def turns() -> tf.Tensor:
        return tf.map_fn(lambda _: tf.random.normal([4]), tf.range(3.0))

    rows = drawn(turns, step=1)
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_afterwards_tensorflow_draws_as_before() -> None:
    tf.random.set_seed(5)
    before = tf.random.normal([3]).numpy()
    with pytest.raises(RuntimeError), TensorFlowDraws().keyed(tf.zeros([2], tf.int64)):
        raise RuntimeError
    tf.random.set_seed(5)
    np.testing.assert_array_equal(tf.random.normal([3]), before)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: tf.random.normal([rows, 3]),
        lambda rows: tf.random.uniform([rows, 3], 0, 100, tf.int32),
        lambda rows: tf.random.truncated_normal([rows, 3]),
        lambda rows: tf.random.categorical(tf.zeros([rows, 50]), 3),
        lambda rows: tf.nn.dropout(tf.ones([rows, 64]), 0.5),
    ],
)
def test_a_replayed_row_is_the_same_on_any_replica(
    draw: Callable[[int], tf.Tensor],
) -> None:
    replayed = ReplayedRandomNumbers()
    draws = TensorFlowDraws(replayed)

    def of(examples: Sequence[int]) -> np.ndarray:
        with (
            replayed.replayed(tf.constant(examples, tf.int64)),
            draws.keyed(tf.constant([1, 2], tf.int64)),
        ):
            return draw(len(examples)).numpy()

    whole = of([4, 8, 15, 16])
    np.testing.assert_array_equal(of([15, 16]), whole[2:])
    assert (whole[:1] != whole[1:]).any()


def test_replicas_and_stages_draw_different_numbers() -> None:
    """Workers with the graph of a seed drew the same ones by TensorFlow's counters."""

    def of(replica: int, num_stages: int) -> list[tuple[float, ...]]:
        zero = tf.zeros([], tf.int64)
        rows = tf.constant([0, 1], tf.int64)
        place = tf.constant(replica, tf.int64)
        batch = Batch(zero + 7, place, zero + 4, zero + 2, rows, None, None)
        drawn, numbers = [], None
        for _ in range(num_stages):
            numbers = StepRandomNumbers(3, None, numbers)
            with numbers.drawn(batch):
                for _ in range(2 // num_stages):
                    drawn.append(tuple(tf.random.normal([2]).numpy().tolist()))
        return drawn

    assert len({*of(0, num_stages=2), *of(1, num_stages=2)}) == 4
    # A model of one stage draws the same.
    assert of(0, num_stages=2) == of(0, num_stages=1)
