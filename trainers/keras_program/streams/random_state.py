"""State of the generators that all code of a process draws from."""

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from strategies.common.private_apis.random_numbers import (
    seeds_state,
    set_seeds_state,
)


def random_state() -> dict[str, Any]:
    """Returns the states of the global generators of all libraries, for JSON."""
    name, keys, *numbers = np.random.get_state()
    state = {"python": random.getstate(), "numpy": [name, keys.tolist(), *numbers]}
    state |= seeds_state()
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state().tolist()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continues from a state that `random_state` has returned, also if it was JSON."""
    # First, because it may draw from Python's.
    set_seeds_state(state)
    version, keys, next_gauss = state["python"]
    random.setstate((version, tuple(keys), next_gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch = sys.modules.get("torch")
    # The process that has saved the state may not have imported it.
    if torch is not None and "torch" in state:
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Keeps the state of random numbers that a program's data may draw from.

    The training then reads the batches that `fit` would read.
    """
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
