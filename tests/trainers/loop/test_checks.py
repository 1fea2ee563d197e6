"""Checks that settings, strategy, data and model fit together."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import pytest

from strategies import registry
from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.inputs.sources import StreamedSource
from trainers.loop.checks import (
    check_batch_size,
    check_compiled_optimizer,
    check_overwritten,
    check_shardable,
)
from trainers.model.optimizers.several import SeveralOptimizers


@pytest.mark.parametrize(
    ("strategy", "steps", "remedy"),
    [
        ("mirrored", 1, "lower --num_replicas."),
        ("multi_worker_mirrored", 1, "lower --num_workers."),
        ("multi_worker_mirrored", 2, "--num_workers or --gradient_accumulation_steps."),
    ],
)
def test_a_batch_that_is_too_small_names_what_may_be_lowered(
    strategy: str, steps: int, remedy: str
) -> None:
    settings = {"strategy": strategy, "gradient_accumulation_steps": steps}
    created: Any = SimpleNamespace(traits=registry.traits(strategy), num_replicas=3)
    data: Any = SimpleNamespace(train=None)
    with pytest.raises(UsageError) as error:
        check_batch_size(
            Config().replace(global_batch_size=2, **settings), created, data
        )
    assert str(error.value).endswith(remedy)


def test_a_batch_with_an_example_for_each_worker_that_is_waited_for_is_accepted() -> (
    None
):
    """One of three workers is a backup, which takes a shard of the next batch."""
    config = Config().replace(
        strategy="parameter_server", update="sync", backup_workers=1
    )
    created: Any = SimpleNamespace(traits=config.strategy.traits, num_replicas=3)
    data: Any = SimpleNamespace(train=None)
    check_batch_size(config.replace(global_batch_size=2), created, data)
    with pytest.raises(UsageError, match="smaller than the 2 replicas"):
        check_batch_size(config.replace(global_batch_size=1), created, data)
    # Before the number of workers is known, micro-batches are.
    with pytest.raises(UsageError, match="is smaller than --gradient_accum"):
        config.replace(global_batch_size=1, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("is_stream", "words"),
    [
        (False, "the program's fit(batch_size=2) is"),
        (True, "the batch of 2 in the program's data is"),
    ],
)
def test_a_batch_of_a_program_is_named_as_such(is_stream: bool, words: str) -> None:
    strategy: Any = SimpleNamespace(traits=registry.traits("tower"), num_replicas=65)
    data: Any = SimpleNamespace(train=mock.Mock(StreamedSource) if is_stream else None)
    # More than the default batch of 64, which no program has before its fit.
    config = Config().with_given(script="a.py", strategy="tower", num_replicas=65)
    with pytest.raises(UsageError) as error:
        check_batch_size(config.replace(global_batch_size=2), strategy, data)
    assert str(error.value).startswith(f"{words} smaller than the 65 replicas")


def test_the_optimizer_that_updates_in_a_branch_is_named() -> None:
    """A step of the model's own may call several."""
    sgd = keras.optimizers.SGD()
    lion = keras.optimizers.Lion(gradient_accumulation_steps=2)
    several: Any = SeveralOptimizers([(sgd, []), (lion, [])], sgd)
    tower: Any = SimpleNamespace(traits=registry.traits("tower"))
    mirrored: Any = SimpleNamespace(name="mirrored", traits=registry.traits("mirrored"))
    check_compiled_optimizer(several, tower)
    check_compiled_optimizer(sgd, mirrored)
    with pytest.raises(UsageError, match=r"^Lion with gradient_accumulation_steps"):
        check_compiled_optimizer(several, mirrored)


def test_an_optimizer_of_other_weights_is_not_divided() -> None:
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    objective: Any = None
    check_shardable(optimizer, model, objective, keeps_rows=False)
    model.layers[0].trainable = False
    with pytest.raises(UsageError, match="Adam that was built for other weights"):
        check_shardable(optimizer, model, objective, keeps_rows=False)


def test_largest_values_of_a_batch_are_not_added_up() -> None:
    dense = keras.layers.Dense(3, dtype="float8_from_mixed_bfloat16")
    model = keras.Sequential([keras.Input((2,)), dense])
    check_overwritten(model, num_parts=1)
    with pytest.raises(UsageError, match=r"inputs_scale' gets .* which 2 parts"):
        check_overwritten(model, num_parts=2)
