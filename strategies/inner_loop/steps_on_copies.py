"""Training loops on variables that differ between replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.common.types import StepFuture, SummaryLevel, SyncedFlags
from strategies.inner_loop.loop import InnerLoop


class StepsOnCopies:
    """Training loop on separate copies of the weights. Satisfies `LoopFunction`."""

    def __init__(
        self, loop: InnerLoop, load_local: Callable[[], None], leave: Callable[[], None]
    ):
        """Wraps each call of a loop.

        Args:
          loop: Loop with steps that change the replicas' own values.
          load_local: Function that restores each replica's own values, called before
            the steps.
          leave: Function called after the steps.
        """
        self._loop = loop
        self._take_up = load_local
        self._leave = leave

    def trace(self, batches: Any) -> tf.Graph:
        return self._loop.trace(batches)

    def num_traces(self) -> int:
        return self._loop.num_traces()

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepFuture:
        self._take_up()
        pending = self._loop(batches, num_steps, observe, local_flags)
        self._leave()
        return pending
