"""Carries shares from workers to the servers of their variables, and adds them up.

On every server there is one queue. A worker puts one element into each, which holds
all it has for that server, marked with the attempt it belongs to. A server takes
elements until it has those of as many workers as an update needs, and leaves out
what was computed for an earlier attempt. TensorFlow 1 did the same with conditional
accumulators (Chen et al., Revisiting Distributed Synchronous SGD, 2016), one for each
variable, so that an update could mix the gradients of different workers. Here the
first server decides whose count, and the others take the same workers' elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.types import Shares
from strategies.ps.tensor_packing import Parcel

# The attempt of elements that are made up to end a wait that nothing else would end.
_ANY_ATTEMPT = np.iinfo(np.int64).max


class Taken(NamedTuple):
    """What the workers of one update have sent, added up.

    Attributes:
      shares: the sum.
      counts: float64, the sum of the `counts` sent with them.
      late: float64 scalar, elements of earlier attempts met on the way.
    """

    shares: Shares
    counts: tf.Tensor
    late: tf.Tensor


class ShareQueues:
    """One queue on each server, made while the first function that sends is traced."""

    def __init__(
        self,
        servers: Sequence[str],
        gradient_devices: Sequence[str],
        num_workers: int,
        num_required: int,
    ):
        """Makes nothing yet: what is sent is known when it is traced.

        Args:
          servers: a device of each, by its full name.
          gradient_devices: the full name of the device of each gradient's variable.
          num_workers: how many may send.
          num_required: how many an update waits for.
        """
        self._servers = servers
        self._server_of_gradient = [servers.index(d) for d in gradient_devices]
        self._num_workers = num_workers
        self._num_required = num_required
        self._structure: Shares | None = None
        self._parcels: list[Parcel] = []
        self._queues: list[tf.queue.FIFOQueue] = []

    @property
    def leaves_out_late_ones(self) -> bool:
        """Whether an update may go on without some workers."""
        return self._num_required < self._num_workers

    def send(
        self, attempt: tf.Tensor, worker: tf.Tensor, shares: Shares, counts: tf.Tensor
    ) -> tf.Operation:
        """Puts what one worker has computed into every server's queue.

        Args:
          attempt: int64 scalar, the one whose weights were read.
          worker: int64 scalar.
          shares: the worker's.
          counts: float64 vector that is added up as well.
        """
        values = self._by_server(shares, counts)
        if not self._queues:
            self._structure = shares
            self._parcels = [Parcel.of(part) for part in values]
            self._queues = self._make_queues()
        packed = [
            parcel.pack(part)
            for parcel, part in zip(self._parcels, values, strict=True)
        ]
        sent = []
        # Whoever has one of the elements knows that all weights have been read.
        with tf.control_dependencies(tf.nest.flatten(packed)):
            for server, queue, components in self._each(packed):
                with tf.device(server):
                    sent.append(queue.enqueue([attempt, worker, *components]))
        return tf.group(sent)

    def take(self, attempt: tf.Tensor) -> Taken:
        """Waits for as many workers as an update needs, and adds up what they sent."""
        if self._structure is None:
            raise RuntimeError("taking is traced before sending")
        chosen, late = None, tf.zeros([], tf.float64)
        values = []
        for index, server in enumerate(self._servers):
            with tf.device(server):
                received, skipped, totals = self._collect(index, attempt, chosen)
                values.append(self._parcels[index].unpack(totals))
            if chosen is None:
                chosen, late = received, skipped
        return Taken(*self._from_servers(self._structure, values), late)

    def give_up(self) -> None:
        """Ends a `take` that waits, with a sum that is not a number."""
        nothing = [parcel.filled(float("nan")) for parcel in self._parcels]
        for server, queue, components in self._each(nothing):
            with tf.device(server):
                for worker in range(self._num_workers):
                    marks = tf.constant(_ANY_ATTEMPT), tf.constant(worker, tf.int64)
                    queue.enqueue([*marks, *components])

    def _each(self, packed: Sequence[Any]) -> Any:
        return zip(self._servers, self._queues, packed, strict=True)

    def _make_queues(self) -> list[tf.queue.FIFOQueue]:
        """Without a bound: at most one element of each worker is not late."""
        queues = []
        for server, parcel in zip(self._servers, self._parcels, strict=True):
            with tf.init_scope(), tf.device(server):
                types = [tf.int64, tf.int64, *parcel.dtypes()]
                queues.append(tf.queue.FIFOQueue(-1, types))
        return queues

    def _by_server(self, shares: Shares, counts: tf.Tensor) -> list[list[Any]]:
        """Each gradient to its variable's server, all else to the first."""
        parts: list[list[Any]] = [[] for _ in self._servers]
        for gradient, server in zip(
            shares.gradients, self._server_of_gradient, strict=True
        ):
            if gradient is not None:
                parts[server].append(gradient)
        sums = [shares.sums[name] for name in sorted(shares.sums)]
        parts[0] += [*tf.nest.flatten(shares.state), *sums, counts]
        return parts

    def _from_servers(
        self, structure: Shares, parts: Sequence[Sequence[Any]]
    ) -> tuple[Shares, tf.Tensor]:
        """Turns `_by_server` back."""
        remaining = [iter(part) for part in parts]
        gradients = [
            None if gradient is None else next(remaining[server])
            for gradient, server in zip(
                structure.gradients, self._server_of_gradient, strict=True
            )
        ]
        state = tf.nest.map_structure(lambda _: next(remaining[0]), structure.state)
        sums = {name: next(remaining[0]) for name in sorted(structure.sums)}
        return Shares(gradients, state, sums), next(remaining[0])

    def _collect(
        self, index: int, attempt: tf.Tensor, chosen: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
        """Who was added up on one server, how many were late, and the sums."""
        parcel = self._parcels[index]
        workers = tf.range(self._num_workers, dtype=tf.int64)

        def proceed(received: tf.Tensor, late: tf.Tensor, *totals: Any) -> tf.Tensor:
            return tf.reduce_sum(tf.cast(received, tf.int32)) < self._num_required

        def body(received: tf.Tensor, late: tf.Tensor, *totals: Any) -> tuple[Any, ...]:
            sent, worker, *parts = self._dequeue(index)
            in_time = tf.equal(sent, attempt) | tf.equal(sent, _ANY_ATTEMPT)
            # A closure that is run again, after its worker was lost, sends once more.
            wanted = in_time & ~received[worker]
            if chosen is not None:
                wanted &= chosen[worker]
            added = tf.cond(
                wanted, lambda: parcel.add(totals, parts), lambda: list(totals)
            )
            late += tf.cast(sent < attempt, tf.float64)
            return (received | (tf.equal(workers, worker) & wanted), late, *added)

        nobody = tf.zeros([self._num_workers], tf.bool)
        received, late, *totals = tf.while_loop(
            proceed,
            body,
            (nobody, tf.zeros([], tf.float64), *parcel.filled(0.0)),
            (nobody.shape, tf.TensorShape([]), *parcel.shapes()),
        )
        return received, late, totals

    def _dequeue(self, index: int) -> Sequence[tf.Tensor]:
        """An element, with the shapes that a queue forgets where one is not known."""
        element = self._queues[index].dequeue()
        shapes = [[], [], *self._parcels[index].shapes()]
        for part, shape in zip(element, shapes, strict=True):
            part.set_shape(shape)
        return element
