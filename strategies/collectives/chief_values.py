"""The chief's values on all workers."""

import hashlib
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.gathering import gathered
from strategies.common.private_apis.variables import copies_of
from strategies.inner_loop.all_reduce import sum_by_type
from strategies.inner_loop.replicated import on_first_replica


class ChiefValues:
    """Gives all workers the chief's values of variables.

    No file system needs to be shared. Values that are equal everywhere are not sent: a
    new run has the same initial values on every worker, and 84 MB of weights would take
    7 seconds at 100 Mbit/s. Of a resumed run only the chief reads the checkpoint.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int):
        self._strategy = strategy
        self._rank = rank
        # Traced once, because this barrier follows every checkpoint.
        self._meet = tf.function(
            lambda: self._sum_of_chief([tf.zeros([])]), autograph=False
        )
        self._gather = tf.function(
            lambda own: gathered(strategy, lambda context: [own]), autograph=False
        )

    def meet(self) -> None:
        """Waits for all workers."""
        self._meet()

    def assign(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the chief's values to variables.

        All processes have to call this method at the same step, with variables of the
        same shapes and types, because it runs collectives.
        """
        different = self._different(variables)
        if not different:
            return
        send = tf.function(lambda: self._sum_of_chief(different), autograph=False)
        values = on_first_replica(self._strategy, send())
        for variable, value in zip(different, values, strict=True):
            variable.assign(value)

    def _different(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """Returns the variables whose values are not the same on all workers."""
        own = tf.constant([_digest(variable) for variable in variables], tf.int64)
        (rows,) = on_first_replica(self._strategy, self._gather(own))
        of_all = rows.numpy()
        is_different = (of_all != of_all[:1]).any(axis=0)
        # The same on every worker, so that all continue with the same collective.
        return [
            v for v, differs in zip(variables, is_different, strict=True) if differs
        ]

    def _sum_of_chief(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """Returns a sum to which only the chief contributes, on each replica."""
        holds = tf.constant(self._rank == 0)

        def on_each_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            is_first = holds & tf.equal(context.replica_id_in_sync_group, 0)
            # `tf.where`, not a product: 0 times inf would be nan.
            values = [tf.convert_to_tensor(v) for v in variables]
            mine = [tf.where(is_first, v, tf.zeros_like(v)) for v in values]
            return sum_by_type(context, mine)

        return self._strategy.run(on_each_replica)


def _digest(variable: tf.Variable) -> int:
    """Returns 63 bits of a hash of a variable's bytes.

    Values that differ have the same digest with a probability of 2 ** -63.
    """
    # All copies of a process are equal.
    value = copies_of(variable)[0].numpy()
    digest = hashlib.blake2b(value.tobytes(), digest_size=8).digest()
    # Not negative, and so without overflow in a sum with zeros.
    return int.from_bytes(digest, "big") >> 1
