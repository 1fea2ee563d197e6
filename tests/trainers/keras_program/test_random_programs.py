"""Programs made by chance train under a strategy as Keras's own `fit` trains them.

`TEST_FIRST_PROGRAM=1000 make test-exhaustive ARGS="-k made_by_chance"` tries others.
"""

import json
import os
import pathlib
import random

import pytest

from tests.markers import chosen
from tests.random_programs.program import program
from tests.trainers.keras_program.beside_fit import (
    FLAGS,
    assert_as_by_fit,
    by_fit,
    run_under,
    under,
)

_FIRST = int(os.environ.get("TEST_FIRST_PROGRAM", "0"))
_PROGRAMS_OF_A_STRATEGY = 8
_CASES = [
    (strategy, _FIRST + index)
    for strategy in FLAGS
    for index in range(_PROGRAMS_OF_A_STRATEGY)
]


def _program(strategy: str, seed: int, last_batch: int | None = None) -> str:
    return program(
        seed,
        # tower and parameter_server add up no moments.
        can_normalize=strategy not in ("tower", "parameter_server"),
        is_accumulated=strategy in ("one_device", "tower"),
        last_batch=last_batch,
    )


# Program 1 has two calls of fit, a penalty, arrays, a data set and a generator.
@pytest.mark.parametrize(
    ("strategy", "seed"), chosen(_CASES, [("mirrored", _FIRST + 1)])
)
def test_a_program_made_by_chance_trains_as_with_fit(
    tmp_path: pathlib.Path, strategy: str, seed: int
) -> None:
    text = _program(strategy, seed)
    plain = tmp_path / "plain"
    plain.mkdir()
    found = under(tmp_path, text, *FLAGS[strategy])
    assert_as_by_fit(found, by_fit(plain, text))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "seed"), _CASES)
def test_a_program_made_by_chance_continues_after_a_kill(
    tmp_path: pathlib.Path, strategy: str, seed: int
) -> None:
    """Checkpoints are of every second step, and equal is to the bit."""
    last_batch = random.Random(seed).randint(1, 12)
    text = _program(strategy, seed, last_batch)
    flags = (*FLAGS[strategy], "--checkpoint_every_steps=2")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    # The callback of the program leaves this one alone.
    (whole / "killed").touch()
    expected = under(whole, text, *flags)
    # The launcher of several processes continues it by itself.
    if run_under(killed, text, *flags).returncode:
        under(killed, text, *flags, "--resume=auto")
    found = json.loads((killed / "record.json").read_text())
    for one, other in zip(found, expected, strict=True):
        assert {**one, "initial": None} == {**other, "initial": None}
