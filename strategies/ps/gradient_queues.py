"""Queues that carry replica outputs from workers to servers.

Every server has one queue. A worker puts one element into each queue, with all its
values for that server and the number of the attempt. A server takes elements until it
has the elements of as many workers as an update needs, and drops elements of earlier
attempts. TensorFlow 1 did the same with conditional accumulators (Chen et al.,
Revisiting Distributed Synchronous SGD, 2016), one for each variable, so that an update
could mix the gradients of different workers. Here the first server decides which
workers count, and the other servers take the elements of the same workers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.ps.element_layout import ElementLayout

# Attempt of artificial elements, which end a wait that nothing else would end.
_ANY_ATTEMPT = np.iinfo(np.int64).max


class GradientQueues:
    """Queues of replica outputs, one on each server."""

    def __init__(
        self,
        servers: Sequence[str],
        gradient_devices: Sequence[str],
        num_workers: int,
        num_required: int,
    ):
        """Makes no queue yet, because only tracing shows the sent values.

        Args:
          servers: Full name of a device of each server.
          gradient_devices: Full name of the device of each gradient's variable.
          num_workers: Number of workers that may send.
          num_required: Number of workers that an update waits for.
        """
        self._servers = servers
        self._server_of_gradient = [servers.index(d) for d in gradient_devices]
        self.num_workers = num_workers
        self.num_required = num_required
        self._structure: ReplicaOutputs | None = None
        self._layouts: list[ElementLayout] = []
        self._queues: list[tf.queue.FIFOQueue] = []

    @property
    def has_backup_workers(self) -> bool:
        """True if an update may proceed without some workers."""
        return self.num_required < self.num_workers

    def send(
        self, attempt: tf.Tensor, worker: tf.Tensor, outputs: ReplicaOutputs
    ) -> tf.Operation:
        """Puts the outputs of one worker into every server's queue.

        Args:
          attempt: Number of the attempt whose weights were read, int64 scalar.
          worker: Index of the worker, int64 scalar.
          outputs: Outputs of the worker.
        """
        values = self._by_server(outputs)
        if not self._queues:
            self._structure = outputs
            self._layouts = [ElementLayout(part) for part in values]
            self._queues = self._make_queues()
        packed = [
            layout.pack(part)
            for layout, part in zip(self._layouts, values, strict=True)
        ]
        sent = []
        # All values are computed before the first element is sent. An element in any
        # queue thus shows that the worker has read all weights, which may change now.
        with tf.control_dependencies(tf.nest.flatten(packed)):
            for server, queue, components in self._each(packed):
                with tf.device(server):
                    sent.append(queue.enqueue([attempt, worker, *components]))
        return tf.group(sent)

    def take(self, attempt: tf.Tensor) -> tuple[ReplicaOutputs, tf.Tensor]:
        """Waits for as many workers as an update needs, and sums their elements.

        Returns:
          The sum of their outputs, and the number of dropped elements of earlier
          attempts, float64 scalar.
        """
        if self._structure is None:
            raise RuntimeError("taking is traced before sending")
        chosen, late = None, tf.zeros([], tf.float64)
        values = []
        for index, server in enumerate(self._servers):
            with tf.device(server):
                received, skipped, totals = self._collect(index, attempt, chosen)
                values.append(self._layouts[index].summed.unpack(totals))
            # The first server chooses the workers for the other servers.
            if chosen is None:
                chosen, late = received, skipped
        return self._from_servers(self._structure, values), late

    def give_up(self) -> None:
        """Ends a `take` that waits, with a sum of NaN."""
        # The loop stops at a sum that is not finite, without an update.
        nothing = [layout.sent.filled(float("nan")) for layout in self._layouts]
        for server, queue, components in self._each(nothing):
            with tf.device(server):
                for worker in range(self.num_workers):
                    marks = tf.constant(_ANY_ATTEMPT), tf.constant(worker, tf.int64)
                    queue.enqueue([*marks, *components])

    def _each(self, packed: Sequence[Any]) -> Any:
        return zip(self._servers, self._queues, packed, strict=True)

    def _make_queues(self) -> list[tf.queue.FIFOQueue]:
        """Makes the queue of each server, outside of the function being traced."""
        # Without a capacity, because at most one element of each worker is not late.
        queues = []
        for server, layout in zip(self._servers, self._layouts, strict=True):
            with tf.init_scope(), tf.device(server):
                types = [tf.int64, tf.int64, *layout.sent.dtypes()]
                queues.append(tf.queue.FIFOQueue(-1, types))
        return queues

    def _by_server(self, outputs: ReplicaOutputs) -> list[list[Any]]:
        """Returns the values for each server: gradients at their variable's server.

        All other values go to the first server.
        """
        parts: list[list[Any]] = [[] for _ in self._servers]
        for gradient, server in zip(
            outputs.gradients, self._server_of_gradient, strict=True
        ):
            if gradient is not None:
                parts[server].append(gradient)
        sums = [outputs.sums[name] for name in sorted(outputs.sums)]
        parts[0] += [*tf.nest.flatten(outputs.state), *sums]
        return parts

    def _from_servers(
        self, structure: ReplicaOutputs, parts: Sequence[Sequence[Any]]
    ) -> ReplicaOutputs:
        """Returns outputs from values by server, inverting `_by_server`."""
        # Values are taken in the order in which `_by_server` appends them.
        remaining = [iter(part) for part in parts]
        gradients = [
            None if gradient is None else next(remaining[server])
            for gradient, server in zip(
                structure.gradients, self._server_of_gradient, strict=True
            )
        ]
        state = tf.nest.map_structure(lambda _: next(remaining[0]), structure.state)
        sums = {name: next(remaining[0]) for name in sorted(structure.sums)}
        return ReplicaOutputs(gradients, state, sums)

    def _collect(
        self, index: int, attempt: tf.Tensor, chosen: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
        """Sums elements on one server until enough workers have sent one.

        Args:
          index: Index of the server.
          attempt: Number of the attempt, int64 scalar.
          chosen: Workers chosen by the first server, bool [workers]; None to choose.

        Returns:
          The summed workers, bool [workers], the number of late elements, and the sums.
        """
        layout = self._layouts[index]
        summed = layout.summed
        workers = tf.range(self.num_workers, dtype=tf.int64)

        def proceed(received: tf.Tensor, late: tf.Tensor, *totals: Any) -> tf.Tensor:
            return tf.reduce_sum(tf.cast(received, tf.int32)) < self.num_required

        def body(received: tf.Tensor, late: tf.Tensor, *totals: Any) -> tuple[Any, ...]:
            sent, worker, *parts = self._dequeue(index)
            in_time = tf.equal(sent, attempt) | tf.equal(sent, _ANY_ATTEMPT)
            # A closure sends a second time if it runs again after its worker died.
            wanted = in_time & ~received[worker]
            if chosen is not None:
                wanted &= chosen[worker]
            added = tf.cond(
                wanted,
                lambda: summed.add(totals, layout.decoded(parts)),
                lambda: list(totals),
            )
            late += tf.cast(sent < attempt, tf.float64)
            return (received | (tf.equal(workers, worker) & wanted), late, *added)

        nobody = tf.zeros([self.num_workers], tf.bool)
        received, late, *totals = tf.while_loop(
            proceed,
            body,
            (nobody, tf.zeros([], tf.float64), *summed.filled(0.0)),
            (nobody.shape, tf.TensorShape([]), *summed.shapes()),
        )
        return received, late, totals

    def _dequeue(self, index: int) -> Sequence[tf.Tensor]:
        """Takes an element and restores the static shapes of its parts."""
        # A queue forgets all shapes if one of them is not fully known.
        element = self._queues[index].dequeue()
        shapes = [[], [], *self._layouts[index].sent.shapes()]
        for part, shape in zip(element, shapes, strict=True):
            part.set_shape(shape)
        return element
