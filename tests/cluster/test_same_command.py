"""Checks that tasks which were started one by one notice that one is another."""

import pathlib
import types
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.launcher.launch_config import local_cluster
from tests.cluster.tasks import Tasks, running
from tests.markers import further
from trainers.config.config import Config
from trainers.inputs.sources import ArraySource, Data
from trainers.keras_program.streams.open_stream import open_stream
from trainers.loop.parts import TrainingParts
from trainers.modes.same_command import require_same_command, require_same_data

CHIEF = Cluster(job="worker", index=0, addresses={"worker": ("one:1", "two:1")})


class _TwoWorkers:
    """Stands for the strategy of two workers, on the first of them."""

    def __init__(self, other: bytes = b""):
        self._other = other
        self.own = b""

    def messages_of_all(self, message: bytes) -> Sequence[bytes]:
        self.own = message
        return [message, self._other or message]

    def wait_until_all_are_done(self) -> None:
        pass

    def close(self) -> None:
        pass


def compare(other: dict[str, Any], own: dict[str, Any]) -> None:
    """Compares the chief with a worker that has other settings."""
    strategy = _TwoWorkers()
    for settings in (other, own):
        strategy = _TwoWorkers(strategy.own)
        config = Config().replace(**settings)
        require_same_command(config, CHIEF, cast(Strategy, strategy), Console())


def compare_data(
    other: np.ndarray,
    own: np.ndarray,
    num_steps: Sequence[int] = (9, 9),
    is_stream: bool = False,
) -> None:
    """Compares the chief with a worker that has other examples."""
    strategy = _TwoWorkers()
    for examples, train_steps in zip((other, own), num_steps, strict=True):
        strategy = _TwoWorkers(strategy.own)
        trained, held_out = (
            ArraySource(part, np.zeros(len(part))) for part in (examples, examples[:4])
        )
        dataset = tf.data.Dataset.from_tensor_slices(examples).batch(5)
        stream = open_stream(dataset, None, "training data")
        data = Data(
            train=stream if is_stream else trained,
            evaluation=held_out,
            input_shape=(3,),
            num_classes=2,
            samples=stream if is_stream else None,
        )
        parts = types.SimpleNamespace(
            data=data, strategy=strategy, train_steps=train_steps
        )
        require_same_data(cast(TrainingParts, parts), CHIEF, Console())


def test_what_belongs_to_a_machine_or_a_process_may_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = {"dataset": "tfrecord", "eval_data_path": "/held_out"}
    compare(
        {**records, "run_dir": "/one", "data_path": "/one/data", "verbose": True},
        {**records, "run_dir": "/two", "data_path": "/two/data"},
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "other", "own", "shown"),
    [
        ("learning_rate", 0.1, 0.2, "--learning_rate=0.1 (here 0.2)"),
        ("seed", 1, 2, "--seed=1 (here 2)"),
        ("hidden_units", (8, 4), (8,), "--hidden_units=8,4 (here 8)"),
        ("checkpoint_every_steps", 7, 9, "--checkpoint_every_steps=7 (here 9)"),
    ],
)
def test_a_setting_of_the_training_may_not_differ(
    name: str, other: Any, own: Any, shown: str
) -> None:
    with pytest.raises(UsageError) as refused:
        compare({name: other}, {name: own})
    assert str(refused.value) == (
        f"worker-1 was given {shown}: give every task the same flags."
    )


def test_another_number_of_examples_is_refused() -> None:
    examples = np.ones((20, 3), np.float32)
    with pytest.raises(UsageError) as refused:
        compare_data(examples[:19], examples)
    assert str(refused.value) == (
        "worker-1 has 19 examples to train on and 4 held out, and this task 20 and 4: "
        "give every task the same data."
    )


def test_another_number_of_steps_is_refused() -> None:
    """A program may train for as many epochs as its task alone knows."""
    examples = np.ones((20, 3), np.float32)
    with pytest.raises(UsageError, match=r"worker-1 .* step 9 .* this task .* step 8"):
        compare_data(examples, examples, (9, 8))


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_chief_warns_of_other_examples(
    is_stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = np.ones((20, 3), np.float32)
    compare_data(examples, examples, is_stream=is_stream)
    assert capsys.readouterr().err == ""
    compare_data(2 * examples, examples, is_stream=is_stream)
    assert capsys.readouterr().err.startswith(
        "warning: worker-1 has other examples than this task: "
    )


@pytest.mark.cluster
@pytest.mark.parametrize("flag", ["--learning_rate=0.5", further("--seed=7")])
def test_no_task_trains_with_another_command(flag: str, tmp_path: pathlib.Path) -> None:
    """The worker with another rate would change its copy of the weights alone."""
    small = ("--model=mlp", "--hidden_units=8", "--train_steps=20")
    tasks = Tasks(
        local_cluster({"worker": 2}),
        tmp_path,
        ("--strategy=multi_worker_mirrored", *small),
    )
    with running(tasks, absent=("worker-1",)):
        tasks.start("worker-1", flag)
        assert tasks.exit_codes() == {"worker-0": 2, "worker-1": 2}
    for own, other in ((0, 1), (1, 0)):
        (line,) = tasks.started[f"worker-{own}"].error_lines()
        name = flag.partition("=")[0]
        assert line.startswith(f"error: worker-{other} was given {name}=")
        assert line.endswith("): give every task the same flags.")
    assert not tasks.run_dir.exists()
