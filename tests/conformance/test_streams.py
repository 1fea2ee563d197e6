"""Checks that training on a stream is the same under every strategy of one process."""

import itertools
import pathlib

import numpy as np
import pytest

from strategies import registry
from strategies.cluster.spec import Cluster
from strategies.config import StrategyConfig
from tests.conformance.harness import in_one_process, small_config
from tests.conformance.test_same_training import TOLERANCES
from tests.markers import chosen
from tests.trainers.inputs.record_factory import write_folder
from trainers.config.config import Config
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.parts import TrainingParts

NUM_STEPS = 9


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Writes 23 examples, so that an epoch of batches of 5 ends with one of 3."""
    return write_folder(tmp_path_factory.mktemp("records") / "train", (8, 4, 11))


def config_of(data: pathlib.Path, sharding: str, **settings: object) -> Config:
    return small_config(
        dataset="tfrecord",
        data_path=str(data),
        eval_data_path=str(data),
        sharding=sharding,
        model="mlp",
        num_classes=2,
        global_batch_size=5,
        train_steps=NUM_STEPS,
        dtype="float64",
        optimizer="sgd",
        learning_rate=0.001,
        **settings,
    )


def assembled(config: Config) -> TrainingParts:
    return assemble(config, create_strategy(config, Cluster()))


def losses(assembly: TrainingParts, first_step: int, num_steps: int) -> np.ndarray:
    batches = assembly.strategy.distribute(assembly.batches(first_step))
    return assembly.loop_function(batches, num_steps).sums["loss"]


def of_several_replicas() -> list[str]:
    return [
        name
        for name in in_one_process()
        if registry.traits(name).supports_streaming
        and registry.traits(name).matches_one_device
        and registry.traits(name).max_replicas != 1
    ]


@pytest.mark.parametrize(
    ("strategy", "sharding"),
    # The strategies of one process open the same input, and a test below continues a
    # run with sharding by example.
    chosen(
        itertools.product(of_several_replicas(), ("example", "file")),
        [("tower", "file")],
    ),
)
def test_same_training_as_one_device(
    data: pathlib.Path, strategy: str, sharding: str
) -> None:
    """All replicas of a process read the same files, with sharding by file too."""
    alone = assembled(config_of(data, sharding))
    expected = losses(alone, 0, NUM_STEPS)
    several = assembled(config_of(data, sharding, strategy=strategy, num_replicas=3))
    got = losses(several, 0, NUM_STEPS)
    assert np.ptp(expected) > 0.1, "the reference does not learn anything"
    tolerance = TOLERANCES["float64", "sgd"]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=0)
    pairs = zip(several.model.weights, alone.model.weights, strict=True)
    for got_weight, weight in pairs:
        distance = np.linalg.norm(got_weight.numpy() - weight.numpy())
        assert distance <= tolerance * np.linalg.norm(weight)
    assert several.config.traits.matches_one_device


def test_a_run_that_goes_on_sees_what_it_would_have_seen(data: pathlib.Path) -> None:
    first = assembled(config_of(data, "example"))
    second = assembled(config_of(data, "example", strategy="tower", num_replicas=2))
    losses(first, 0, 6)
    saved = zip(second.state_variables(), first.state_variables(), strict=True)
    for variable, value in saved:
        variable.assign(value)
    np.testing.assert_allclose(losses(second, 6, 3), losses(first, 6, 3), rtol=1e-12)


@pytest.mark.parametrize("sharding", ["exact", "example", "file"])
@pytest.mark.parametrize("strategy", registry.names())
def test_what_is_declared_holds_for_the_data_as_well(
    data: pathlib.Path, strategy: str, sharding: str
) -> None:
    """Processes that read different files train on other global batches."""
    declared = registry.traits(strategy)
    if sharding != "exact" and not declared.supports_streaming:
        with pytest.raises(ValueError, match=f"--sharding={sharding} does not"):
            config_of(data, sharding, strategy=strategy)
        return
    traits = config_of(data, sharding, strategy=strategy).traits
    own = StrategyConfig(strategy=strategy).traits.matches_one_device
    has_own_files = sharding == "file" and declared.multi_process
    assert traits.matches_one_device == (own and not has_own_files)


def test_asynchronous_towers_refuse_a_stream(data: pathlib.Path) -> None:
    """Asynchronous towers need random access to the batches of all steps."""
    with pytest.raises(ValueError, match=r"--update=async.*--update=sync"):
        config_of(data, "example", strategy="tower", update="async")
