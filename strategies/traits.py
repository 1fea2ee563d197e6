"""What a strategy declares about itself."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What the rest of the program may assume about a strategy.

    Behaviour follows these, never a strategy's name. They are written as
    literals in the strategy's class, because discovery reads them from the
    source without importing it.

    Attributes:
      synchronous: every update uses gradients of the current weights.
      multi_process: replicas are in more than one process.
      matches_one_device: the training equals that of one device to rounding.
      splits_model: its devices share the layers of one model, in stages.
      max_replicas: the most replicas it can have, or None for no limit.
      roles: the jobs its cluster consists of; empty for one process.
      optional_roles: jobs that it may have besides.
      serving_roles: jobs whose tasks only lend themselves to the chief.
      updates: what --update takes, the default first; empty if there is no choice.
      takes_streams: batches are asked for in the order of their steps, each once, so
        that they may come from a stream.
      exchange: how replicas bring their gradients together: in one_place; around a
        ring; at servers, which weights are read from; or none, if they do not.
      averages: what --average takes, the default first: what an update, if it is
        synchronous, averages over replicas; empty if there is nothing to average.
      own_settings: names of the settings of `StrategyConfig` that only strategies which
        name them here make use of.
      summary: one sentence for the table of strategies.
    """

    synchronous: bool
    multi_process: bool
    matches_one_device: bool
    splits_model: bool = False
    max_replicas: int | None = None
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    serving_roles: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    takes_streams: bool = False
    exchange: str = "none"
    averages: tuple[str, ...] = ("gradients",)
    own_settings: tuple[str, ...] = ()
    summary: str = ""
