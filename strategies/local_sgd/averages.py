"""Averages over replicas: the variables, the steps at which they are due, the bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.collectives.update_exchange import WIRE_TYPES
from strategies.common.errors import UsageError
from strategies.common.text import every
from strategies.common.types import ReplicaFunction, Update
from strategies.inner_loop.all_reduce import SumOverReplicas
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.reduction import bytes_of
from strategies.inner_loop.replicated import OwnShard, compile_replicated
from strategies.local_sgd.local_steps import local_step, sum_reported
from strategies.local_sgd.outer_optimizer import OuterOptimizer
from strategies.local_sgd.replica_variables import ReplicaVariables

if TYPE_CHECKING:
    from strategies.config import StrategyConfig


class Averages:
    """Averages of weights, each due after a fixed number of steps.

    The variables may be divided into fragments, each of which has the same number of
    steps from one average to the next. The averages of different fragments are at
    different steps, so that fewer bytes are sent at a time (Douillard et al., Streaming
    DiLoCo with overlapping communication, 2025, arXiv 2501.18512, section 2.2).
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        copies: ReplicaVariables,
        update: Update,
        config: StrategyConfig,
    ):
        """Divides the variables and makes the outer optimizer's, if there is one."""
        self._strategy = strategy
        self._copies = copies
        self._update = update
        self._every = config.steps_between_averages
        self._outer: OuterOptimizer | None = None
        if config.outer_optimizer != "none":
            self._outer = OuterOptimizer(
                strategy,
                update.trainable_weights(),
                learning_rate=config.outer_rate,
                momentum=config.outer_momentum_factor,
                is_nesterov=config.outer_optimizer == "nesterov",
                send_as=WIRE_TYPES[config.outer_dtype],
            )
        self._outer_dtype = config.outer_dtype
        averaged = list(update.weights())
        if config.average_optimizer_state:
            averaged += update.optimizer_state()
        self._fragments = fragments(averaged, config.outer_fragments, self._sent_bytes)

    def compile(
        self,
        own_shard: OwnShard,
        all_reduce: SumOverReplicas,
        replica_step: ReplicaFunction,
        after_call: Callable[[], None] = lambda: None,
    ) -> InnerLoop:
        """Returns a loop in which replicas train alone and are averaged at times."""
        return compile_replicated(
            self._strategy,
            own_shard,
            functools.partial(sum_reported, all_reduce),
            local_step(replica_step, self._strategy.num_replicas_in_sync),
            self._update,
            after_update=self._average_if_due,
            before_call=self._load_local,
            after_call=after_call,
        )

    def _load_local(self) -> None:
        """Restores the local values of each replica, or starts from the variables."""
        without_local = self._copies.load_local()
        if self._outer is not None:
            self._outer.restart(without_local)

    def _average_if_due(self) -> None:
        """Averages the variables that are due, in the graph of a step, at its end."""
        count = len(self._fragments)
        is_due = tf.equal(
            self._update.applied_updates() % self._every,
            tf.constant(due_steps(self._every, count), tf.int64),
        )
        first = tf.argmax(tf.cast(is_due, tf.int32), output_type=tf.int32)
        # The last branch, which does nothing, is for steps without an average.
        branch = tf.where(tf.reduce_any(is_due), first, count)
        branches = [self._branch(fragment) for fragment in (*self._fragments, [])]
        tf.switch_case(branch, branches)

    def variables(self) -> list[tf.Variable]:
        """Returns the variables that a checkpoint needs in addition to the model."""
        outer = [] if self._outer is None else self._outer.variables()
        return [*self._copies.variables(), *outer]

    @property
    def bytes_per_step(self) -> float:
        """Bytes of all averaged variables as they are sent, divided by the steps."""
        sizes = [sum(map(self._sent_bytes, part)) for part in self._fragments]
        return sum(sizes) / self._every

    @property
    def quantity(self) -> str:
        """Name of the quantity that is sent."""
        if self._outer is None:
            return "weights"
        return f"changes of weights, {self._outer_dtype}"

    @property
    def schedule(self) -> str:
        """Steps at which averages are due, and the most bytes of a fragment."""
        words = every(self._every, "step")
        if len(self._fragments) == 1:
            return words
        most = max(sum(map(self._sent_bytes, part)) for part in self._fragments)
        return f"{words} in {len(self._fragments)} fragments of at most {most:,} bytes"

    def _branch(self, fragment: Sequence[tf.Variable]) -> Callable[[], tf.Tensor]:
        def average() -> tf.Tensor:
            outer = self._outer
            weights = [v for v in fragment if outer and outer.changes(v)]
            # Layer state and the optimizer's state have no gradient.
            others = [v for v in fragment if not (outer and outer.changes(v))]
            if outer and weights:
                outer.average(weights)
            if others:
                self._copies.average(others)
            # A branch has to return a value.
            return tf.constant(0)

        return average

    def _sent_bytes(self, variable: tf.Variable) -> int:
        if self._outer is not None and self._outer.changes(variable):
            return self._outer.sent_bytes(variable)
        return bytes_of([variable])


def due_steps(every: int, count: int) -> list[int]:
    """Returns the step of each fragment's average, modulo the steps between averages.

    The steps are as far from each other as possible. The last fragment is due where an
    average of all variables would be.

    Args:
      every: Steps from one average of a fragment to its next.
      count: Number of fragments, at most `every`.
    """
    return [(index + 1) * every // count % every for index in range(count)]


def fragments(
    variables: Sequence[tf.Variable],
    count: int,
    sent_bytes: Callable[[tf.Variable], int],
) -> list[list[tf.Variable]]:
    """Divides variables into parts of about equal bytes, the same on every task.

    Raises:
      UsageError: There are fewer variables than parts.
    """
    if count > len(variables):
        raise UsageError(
            f"--outer_fragments={count} is more than the {len(variables)} variables "
            "that are averaged: lower it to at most as many."
        )
    parts: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    # Largest first, each to the part with the fewest bytes (Graham, Bounds on
    # multiprocessing timing anomalies, 1969): the largest part has at most 4/3 of the
    # bytes of the best division.
    by_size = sorted(range(len(variables)), key=lambda i: -sent_bytes(variables[i]))
    for index in by_size:
        # Of equally large parts the one with fewer variables, so that none stays empty.
        part = min(range(count), key=lambda p: (sizes[p], len(parts[p]), p))
        parts[part].append(index)
        sizes[part] += sent_bytes(variables[index])
    return [[variables[index] for index in sorted(part)] for part in parts]
