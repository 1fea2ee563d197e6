"""Checks that an optimizer updates slices of weights as it updates whole weights."""

import itertools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.buckets import Bucket
from strategies.collectives.optimizer_shard import OptimizerShard
from strategies.common.private_apis.optimizer_slices import state_by_weight
from strategies.inner_loop.grouping import grouped
from tests.markers import chosen, further
from trainers.model.optimizers.adagrad import Adagrad
from trainers.model.optimizers.adam import Adam, AdamW
from trainers.model.optimizers.properties import ELEMENTWISE, updates_each_element

NUM_STEPS = 5
SHAPES = ([7, 5], [5], [3, 3, 2], [1])
EXCLUDED = "bias"


class NotTooLarge(keras.constraints.Constraint):
    """A constraint that limits the norm of a whole weight."""

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        return w / keras.ops.maximum(1.0, tf.norm(w))


def made_weights() -> list[keras.Variable]:
    generator = np.random.default_rng(3)
    weights = [
        keras.Variable(generator.normal(size=shape), dtype="float64", name=name)
        for shape, name in zip(
            SHAPES, ("kernel", "bias", "kernel", "scale"), strict=True
        )
    ]
    weights[2].constraint = NotTooLarge()
    return weights


def gradients_of(step: int, used: Sequence[int]) -> list[tf.Tensor | None]:
    generator = np.random.default_rng(step)
    gradients = [tf.constant(generator.normal(size=shape)) for shape in SHAPES]
    return [g if index in used else None for index, g in enumerate(gradients)]


def built(
    kind: Callable[..., keras.optimizers.Optimizer], weights: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    settings = {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.9}
    if kind is keras.optimizers.SGD:
        settings |= {"momentum": 0.9, "nesterov": True}
    if kind is keras.optimizers.Adam:
        settings |= {"amsgrad": True}
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    optimizer = kind(learning_rate=schedule, **settings)
    optimizer.exclude_from_weight_decay(var_list=[weights[3]], var_names=[EXCLUDED])
    optimizer.build(weights)
    return optimizer


OWN = (Adam, AdamW, Adagrad)


# One weight of a single element: the other workers have none with a gradient.
USED = {"all": range(len(SHAPES)), "one": [3]}
KINDS = (*ELEMENTWISE, *OWN)
# Which parts are without a gradient depends on the shapes, and not on the optimizer.
WITH_ONE = (keras.optimizers.SGD, Adam, Adagrad)


# Three workers have parts of unequal sizes.
@pytest.mark.parametrize("num_workers", [further(2), 3])
@pytest.mark.parametrize(
    ("names", "kind"),
    chosen(
        itertools.product(USED, KINDS),
        [*(("all", kind) for kind in KINDS), *(("one", kind) for kind in WITH_ONE)],
    ),
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_parts_of_all_workers_are_the_whole_update(
    names: str, kind: type[keras.optimizers.Optimizer], num_workers: int
) -> None:
    """Updates have weight decay with exclusions, a moving average and a constraint."""
    used = USED[names]
    expected = made_weights()
    reference = built(kind, expected)
    assert updates_each_element(reference)
    for step in range(NUM_STEPS):
        reference.apply(gradients_of(step, used), expected)

    shapes = [tf.TensorShape(shape) for shape in SHAPES]
    # One bucket has several tensors, and one has a single tensor.
    buckets = [
        Bucket(indices, [shapes[i] for i in indices], tf.float64, num_workers)
        for indices in grouped([(tf.float64, s.num_elements()) for s in shapes], 20 * 8)
    ]
    assert [bucket.indices for bucket in buckets] == [[3, 2, 1], [0]]
    weights, shards = [], []
    for worker in range(num_workers):
        own = made_weights()
        spans = [span for bucket in buckets for span in bucket.spans(worker)]
        shards.append((own, spans, OptimizerShard(built(kind, own), own, spans, None)))
        shards[-1][2].take()
        shards[-1][2].read_weights()
        weights.append(own)
    for step in range(NUM_STEPS):
        gradients = gradients_of(step, used)
        new = [value.numpy() for value in weights[0]]
        for _, spans, shard in shards:
            pieces: list[tf.Tensor | None] = [None] * len(SHAPES)
            for s in spans:
                if s.index in used:
                    vector = tf.reshape(gradients[s.index], [-1])
                    pieces[s.index] = vector[s.start : s.stop]
            slices = shard.apply(pieces, None)
            for s in spans:
                new[s.index].reshape(-1)[s.start : s.stop] = slices[s.index].numpy()
        for own, _, shard in shards:
            for variable, value in zip(own, new, strict=True):
                variable.assign(value)
            shard.constrain([index in used for index in range(len(SHAPES))])
    for own in weights:
        for got, want in zip(own, expected, strict=True):
            # Vectorized kernels may round the last bit of an element differently,
            # depending on its position.
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-13)
    for _, spans, shard in shards:
        for kept, parts in zip(
            state_by_weight(reference, expected), shard.state, strict=True
        ):
            for s in spans:
                want = kept[s.index].numpy().reshape(-1)[s.start : s.stop]
                np.testing.assert_allclose(parts[s.index].numpy(), want, rtol=1e-13)
    # Every element of the state is on exactly one worker.
    whole = [v for v in reference.variables if tuple(v.shape) in map(tuple, SHAPES)]
    num_kinds = len(shards[0][2].state)
    assert num_kinds * len(SHAPES) == len(whole)
    held = [sum(v.shape[0] for v in kind) for _, _, s in shards for kind in s.state]
    assert sum(held) == sum(v.shape.num_elements() for v in whole)


@pytest.mark.parametrize("name", ["Lamb", "Muon", "Adafactor", "LossScaleOptimizer"])
def test_others_are_not_divided(name: str) -> None:
    kind = getattr(keras.optimizers, name)
    inner = (keras.optimizers.SGD(),) if name == "LossScaleOptimizer" else ()
    assert not updates_each_element(kind(*inner))
    assert not updates_each_element(type("Own", (keras.optimizers.SGD,), {})())


def test_the_optimizer_is_as_before_outside_of_an_update() -> None:
    weights = made_weights()
    optimizer = built(keras.optimizers.Adam, weights)
    before = {name: id(value) for name, value in vars(optimizer).items()}
    shapes = [variable.shape for variable in optimizer.variables]
    bucket = Bucket(
        [0, 1, 2, 3], [tf.TensorShape(s) for s in SHAPES], tf.float64, num_parts=2
    )
    shard = OptimizerShard(optimizer, weights, bucket.spans(0), None)
    shard.take()
    pieces: list[tf.Tensor | None] = [None] * len(SHAPES)
    for span in bucket.spans(0):
        pieces[span.index] = tf.ones([span.stop - span.start], tf.float64)
    shard.apply(pieces, None)
    after = {name: id(value) for name, value in vars(optimizer).items()}
    assert {name: after[name] for name in before} == before
    assert [variable.shape for variable in optimizer.variables] == shapes
    # The shard has replaced the whole state by the slices.
    assert shard.whole
    assert all(tf.size(v) == 0 for kind in shard.whole for v in kind)
