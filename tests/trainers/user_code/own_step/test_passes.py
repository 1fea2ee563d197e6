"""Updates of a step share a computation unless one needs what another has changed."""

import keras
import pytest

from trainers.user_code.own_step.objective import OwnUpdate, passes_of


@pytest.mark.parametrize(
    ("optimizers", "reads_after", "sizes"),
    [
        ("a", (), [1]),
        ("a", (1,), [1, 0]),
        ("abc", (), [3]),
        ("abc", (1,), [1, 2]),
        ("abc", (2, 3), [2, 1, 0]),
        ("aa", (), [1, 1]),
        ("aba", (), [2, 1]),
    ],
)
def test_passes_of_updates(
    optimizers: str, reads_after: tuple[int, ...], sizes: list[int]
) -> None:
    by_name = {name: keras.optimizers.SGD() for name in optimizers}
    updates = [OwnUpdate(by_name[name], []) for name in optimizers]
    passes = passes_of(updates, set(reads_after))
    assert [len(updates[one]) for one in passes] == sizes
