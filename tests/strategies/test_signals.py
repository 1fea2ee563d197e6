"""Tests of the words for a signal that ended a task."""

from __future__ import annotations

import signal
import types

import pytest

from strategies.launcher.process import LaunchedTask


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (1, ""),
        (-signal.SIGKILL, " (SIGKILL)"),
        # Python has no name for it, and a task may die by any number.
        (-signal.SIGRTMIN - 2, f" (signal {signal.SIGRTMIN + 2})"),
    ],
)
def test_every_signal_has_words(returncode: int, words: str) -> None:
    task = LaunchedTask.__new__(LaunchedTask)
    task.process = types.SimpleNamespace(poll=lambda: returncode)  # type: ignore[assignment]
    assert task.signal_name == words
