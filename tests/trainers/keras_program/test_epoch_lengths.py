"""Numbers of steps of epochs, where Keras ends some with the data."""

import pytest

from strategies.common.errors import UsageError
from trainers.keras_program.epoch_lengths import EpochLengths, Executions


@pytest.mark.parametrize(
    ("most_steps", "num_batches", "sizes", "warns"),
    [
        (4, 4, [4, 4, 4, 4], False),
        (2, 4, [2, 2, 2, 2], False),
        (6, 4, [4, 4, 4, 4], True),
        (3, 4, [3, 1, 3, 1], True),
        (4, 10, [4, 4, 2, 4], True),
    ],
)
def test_an_epoch_ends_with_the_data(
    most_steps: int, num_batches: int, sizes: list[int], warns: bool
) -> None:
    lengths = EpochLengths(most_steps, num_batches)
    starts = [lengths.start(epoch) for epoch in range(5)]
    assert starts == [sum(sizes[:epoch]) for epoch in range(5)]
    places = [
        (epoch, batch) for epoch, size in enumerate(sizes) for batch in range(size)
    ]
    found = [
        (lengths.epoch_of(step), lengths.batch_of(step)) for step in range(sum(sizes))
    ]
    assert found == places
    assert lengths.of_all == (sizes[0] if len(set(sizes)) == 1 else None)
    assert (lengths.remark(sum(sizes)) is not None) == warns
    # As long as a pass lasts, no epoch of several is cut short.
    if most_steps < num_batches:
        assert lengths.remark(most_steps) is None


def test_executions_begin_anew_with_each_epoch() -> None:
    """Epochs have 4 and 3 steps, and Keras numbers whole executions."""
    executions = Executions(EpochLengths(most_steps=4, num_batches=7), size=3)
    assert [executions.end(step) for step in range(8)] == [3, 3, 3, 4, 7, 7, 7, 10]
    assert [executions.first_batch(step) for step in range(5)] == [0, 0, 0, 3, 0]
    assert [executions.last_batch(step) for step in range(5)] == [2, 2, 2, 5, 2]
    name = "validation_steps"
    assert "validation_steps=4" in (executions.remark(name, 4) or "")
    assert executions.remark(name, 6) is executions.remark(name, None) is None


def test_the_arm_keras_takes_epochs_of_one_length() -> None:
    lengths = EpochLengths(most_steps=4, num_batches=10)
    assert lengths.equal(num_steps=8) == 4
    with pytest.raises(UsageError, match="several lengths"):
        lengths.equal(num_steps=9)
