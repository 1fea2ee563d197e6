"""Places where a model can be cut, and where it is cut."""

from collections.abc import Sequence

import keras
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.pipeline_parallel.layer_graph import LayerGraph
from trainers.pipeline_parallel.partition import cut_at_layers, cut_evenly


def stack(*names: str) -> LayerGraph:
    layers = [keras.layers.Dense(2, name=name) for name in names]
    return LayerGraph.of(keras.Sequential([keras.Input([3]), *layers]))


def names_at(graph: LayerGraph, positions: Sequence[int]) -> list[str]:
    return [graph.calls[position].layer.name for position in positions]


@pytest.mark.parametrize(
    ("seconds", "num_stages", "expected"),
    [
        ((1, 1, 1, 1), 2, [2]),
        ((1, 1, 1, 1), 4, [1, 2, 3]),
        ((9, 1, 1, 1), 2, [1]),
        ((1, 1, 1, 9), 2, [3]),
        ((1, 5, 1, 5), 3, [1, 2]),
        ((1, 1, 1, 1), 1, []),
    ],
)
def test_the_slowest_stage_is_as_fast_as_can_be(
    seconds: tuple[float, ...], num_stages: int, expected: list[int]
) -> None:
    graph = stack("a", "b", "c", "d")
    cuts = cut_evenly(graph, lambda: seconds, num_stages)
    slowest = [
        max(sum(seconds[i:j]) for i, j in zip([0, *c], [*c, 4], strict=True))
        for c in (cuts, expected)
    ]
    assert len(cuts) == num_stages - 1
    assert slowest[0] == slowest[1]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError) as refusal:
        cut_evenly(stack("a", "b"), lambda: [1, 1], 3)
    assert str(refusal.value) == (
        "--pipeline_stages=3 is more than the 2 parts that this model can be cut into "
        "between its layers: lower it."
    )


def test_layers_can_be_named() -> None:
    graph = stack("a", "b", "c", "d")
    assert cut_at_layers(graph, ["b", "d"]) == [1, 3]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["e"],
            "--pipeline_stages=e: 'e' is not a layer of this model; those that can",
        ),
        (["a"], "'a' cannot begin a stage of this model; those that can begin a stage"),
        (["a"], "are b, c, d."),
        (["d", "b"], "is not in the order of the model: give --pipeline_stages=b,d."),
        (
            ["b", "b"],
            "--pipeline_stages=b,b is not in the order of the model: give "
            "--pipeline_stages=b.",
        ),
    ],
)
def test_wrong_names_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        cut_at_layers(stack("a", "b", "c", "d"), names)
    assert words in str(refusal.value)


def test_all_calls_of_a_layer_are_in_one_stage() -> None:
    """Its variables are on one device."""
    inputs = keras.Input([4])
    shared = keras.layers.Dense(4, name="shared")
    hidden = keras.layers.Dense(4, name="between")(shared(inputs))
    outputs = keras.layers.Dense(2, name="logits")(shared(hidden))
    graph = LayerGraph.of(keras.Model(inputs, outputs))
    assert names_at(graph, range(4)) == ["shared", "between", "shared", "logits"]
    assert names_at(graph, graph.cuts()) == ["logits"]


def test_a_mask_stays_in_its_stage() -> None:
    inputs = keras.Input([5], dtype="int64")
    hidden = keras.layers.Embedding(9, 4, mask_zero=True, name="ids")(inputs)
    hidden = keras.layers.Dropout(0.1, name="passes_it_on")(hidden)
    hidden = keras.layers.LSTM(4, name="takes_it")(hidden)
    outputs = keras.layers.Dense(2, name="logits")(hidden)
    graph = LayerGraph.of(keras.Model(inputs, outputs))
    assert names_at(graph, graph.cuts()) == ["logits"]


class OwnCall(keras.Model):
    """Hides what it does in its call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(2)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.layer(inputs)


class Functional(keras.Model):
    """A model of connected layers that overrides `call`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2 * super().call(inputs)


def test_subclassed_models_are_refused_in_one_line() -> None:
    tensor = keras.Input([3])
    outputs = keras.layers.Dense(2)(tensor)
    for model in (OwnCall(), Functional(tensor, outputs)):
        with pytest.raises(UsageError) as refusal:
            LayerGraph.of(model)
        assert str(refusal.value) == (
            "--strategy=model_parallel splits a model between its layers, and "
            f"{type(model).__name__} has a call of its own: make it a functional or "
            "Sequential model, or choose another strategy."
        )


def test_models_with_several_outputs_are_refused() -> None:
    tensor = keras.Input([3])
    outputs = [keras.layers.Dense(2)(tensor) for _ in range(2)]
    with pytest.raises(UsageError, match=r"with one output, and this has 2: choose"):
        LayerGraph.of(keras.Model(tensor, outputs))
